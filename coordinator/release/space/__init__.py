"""The demo's files, as they are copied into a release; nothing of manyhands imports them."""
