"""Texts on which tokenizers must not differ: several scripts, emoji, odd white space, spellings of special tokens."""

from __future__ import annotations

ENGLISH = "The cat sat on the mat, didn't it? It cost 12,345.67 dollars — or so they say."
SPANISH = "¡El niño comió piñata! ¿Qué más quería la cigüeña de Ávila?"
BENGALI = "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। কৃষ্ণচূড়া, দুঃখ, ১৯৭১ সালের ২৬ মার্চ।"
CHINESE = "我喜欢猫。中文和English混在一起，第１章。"
ARABIC = "العربية لغة جميلة، أليس كذلك؟ نعم، لغةٌ جميلةٌ."
EMOJI = "😀 family: 👨‍👩‍👧, thumbs 👍🏽, flag 🇧🇩"
SPACES = "  odd\twhite\u00a0space\r\n\nlines \u200b\u3000 end  "
COMPOSED = "ﬁne café cafe\u0301 ½ Ⅷ Ａ \u09f7 | ভালো দু:খ"
SPECIAL = "[MASK] <mask> [CLS] <s> </s> [SEP] <unk> [PAD]<pad>"
PROSE = (ENGLISH, SPANISH, BENGALI, CHINESE, ARABIC)
TEXTS = (*PROSE, EMOJI, SPACES, COMPOSED, SPECIAL, "", "   ", "a" * 300)
