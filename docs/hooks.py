"""MkDocs hooks: add pages from outside `docs/`, and drop files that no page loads."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("CHANGELOG.md", "SECURITY.md")
UNUSED_ASSETS = "assets/javascripts/lunr/"  # search support for other languages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Drop the theme's static templates, which need the address of the site."""
    config.theme.static_templates.clear()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/`, and drop files that no page loads."""
    for name in OUTSIDE:
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    for file in list(files):
        if file.src_uri.endswith(".map") or file.src_uri.startswith(UNUSED_ASSETS):
            files.remove(file)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Adapt links between `docs/` and the pages from outside to their locations in the site."""
    if page.file.src_uri in OUTSIDE:
        return markdown.replace("](docs/", "](")
    for name in OUTSIDE:
        markdown = markdown.replace(f"../{name})", f"{name})")  # one level less at any depth
    return markdown


def on_post_page(output: str, **_: object) -> str:
    """Label the search dialog for screen readers, because the theme does not."""
    return output.replace(' role="dialog"', ' role="dialog" aria-label="Search"')
