"""Public data sets and a tokenizer preset for each language, used in planned run files and recipes.

The first part of a language code selects the language, unless an extended language follows
(`zh-yue` is `yue`). Script and region (`zh-Hant`, `pt-BR`) are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.config.tokenizer import PresetName

WIKIPEDIA, WIKIPEDIA_DATE = "wikimedia/wikipedia", "20231101"
WEB = "allenai/c4"  # C4 in English, mC4 in the other languages
WIKIPEDIA_SHARE = 0.23  # Wikipedia's share of tokens in sahajBERT's mixture with web pages
# Wikipedias stored under their language's code; others are in `WIKIPEDIA_CODES`.
WIKIPEDIAS = frozenset(
    """
    ab ace ady af alt am ami an ang anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar bcl be bg bi
    bjn blk bm bn bo bpy br bs bug bxr ca cdo ce ceb ch chr chy ckb co cr crh cs csb cu cv cy da dag de din diq
    dsb dty dv dz ee el eml en eo es et eu ext fa fat ff fi fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk
    gn gom gor got gpe gu guc gur guw gv ha hak haw he hi hif hr hsb ht hu hy hyw ia id ie ig ik ilo inh io is
    it iu ja jam jbo jv ka kaa kab kbd kbp kcg kg ki kk kl km kn ko koi krc ks ksh ku kv kw ky la lad lb lbe lez
    lfn lg li lij lld lmo ln lo lt ltg lv mad mai mdf mg mhr mi min mk ml mn mni mnw mr mrj ms mt mwl my myv mzn
    nah nap nds ne new nia nl nn no nov nqo nso nv ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl
    pms pnb pnt ps pt pwn qu rm rmy rn ro ru rue rw sa sah sat sc scn sco sd se sg sh shi shn si sk skr sl sm
    smn sn so sq sr srn ss st stq su sv sw szl szy ta tay tcy te tet tg th ti tk tl tly tn to tpi tr trv ts tt
    tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo wa war wo wuu xal xh xmf yi yo za zea zh zu
    """.split()  # noqa: SIM905  # as a list of strings the codes would fill pages
)
WIKIPEDIA_CODES: Mapping[str, str] = {
    "bho": "bh",
    "cbk": "cbk-zam",
    "fil": "tl",
    "gsw": "als",
    "iw": "he",
    "lzh": "zh-classical",
    "nan": "zh-min-nan",
    "nb": "no",
    "nrf": "nrm",
    "rup": "roa-rup",
    "sgs": "bat-smg",
    "vro": "fiu-vro",
    "yue": "zh-yue",
}
# BCP 47's extended languages that have a Wikipedia, by macrolanguage.
EXTENDED_LANGUAGES: Mapping[str, frozenset[str]] = {
    "ar": frozenset({"ary", "arz"}),
    "kok": frozenset({"gom"}),
    "lv": frozenset({"ltg"}),
    "ms": frozenset({"bjn", "min"}),
    "zh": frozenset({"cdo", "gan", "hak", "lzh", "nan", "wuu", "yue"}),
}
WEB_LANGUAGES = frozenset(
    """
    af am ar az be bg bn ca ceb co cs cy da de el en eo es et eu fa fi fil fr fy ga gd gl gu ha haw hi hmn ht hu
    hy id ig is it iw ja jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my ne nl no ny pa pl ps
    pt ro ru sd si sk sl sm sn so sq sr st su sv sw ta te tg th tr uk ur uz vi xh yi yo zh zu
    """.split()  # noqa: SIM905  # as a list of strings the codes would fill pages
)
WEB_CODES: Mapping[str, str] = {"he": "iw", "nb": "no", "tl": "fil"}
WORD_PRESETS: Mapping[str, PresetName] = {"bn": "bengali"}  # languages with a preset other than `albert`


def sources_in(language: str) -> list[dict[str, Any]]:
    """Return Wikipedia and web pages in a language as the `data.sources` of a run file.

    Wikipedia is the only source if C4 lacks the language. Raises `ConfigError` if Wikipedia lacks it.
    """
    RunConfig.from_mapping({"run": {"language": language}}, origin="`--language`")
    code = _bare_code(language)
    wikipedia, web = WIKIPEDIA_CODES.get(code, code), WEB_CODES.get(code, code)
    if code not in WIKIPEDIAS and code not in WIKIPEDIA_CODES:
        raise ConfigError(
            f"`--language` ({language}): the data set {WIKIPEDIA} has no Wikipedia in this language: check the code; "
            "for a language without one, write a run file with sources of your own."
        )
    sources: list[dict[str, Any]] = [{"kind": "hub", "path": WIKIPEDIA, "config_name": f"{WIKIPEDIA_DATE}.{wikipedia}"}]
    if web in WEB_LANGUAGES:
        sources[0]["weight"] = WIKIPEDIA_SHARE
        sources.append({"kind": "hub", "path": WEB, "config_name": web, "weight": 1 - WIKIPEDIA_SHARE})
    return sources


def word_preset(language: str) -> PresetName:
    """Return the tokenizer preset for an ALBERT model in a language."""
    return WORD_PRESETS.get(_bare_code(language), "albert")


def _bare_code(language: str) -> str:
    """Return the code without script and region; `zh-min-nan` is the older form of `zh-nan`."""
    first, *others = language.lower().split("-")
    return next((part for part in others if part in EXTENDED_LANGUAGES.get(first, ())), first)
