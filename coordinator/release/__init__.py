"""A release that people can use: the best checkpoint, its card, fine-tuned task models, a page to try them on."""
