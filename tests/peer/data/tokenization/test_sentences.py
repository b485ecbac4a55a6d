"""Where sentences end, in many languages and scripts, and in texts that nobody would call sentences."""

from __future__ import annotations

import pytest
import sentencex
from hypothesis import given, strategies as st

from peer.data.tokenization.sentences import BLOCK_CHARACTERS, MAX_CHARACTERS, segment_safely, split_sentences

LANGUAGES = ["en", "es", "de", "fr", "ru", "bn", "hi", "ur", "ar", "zh", "ja", "my", "km", "am", "hy", "th", "xx"]
MARKS = "aBé1४.!?…।॥。！？؟۔။៕།፡፧։၊ \n\r\t\u00a0\u0085\u2028\u200b\"'“”‘’«»「」()[]{}<>`@\0\u0301ডাी্😀"


def joined(text: str | list[str]) -> str:
    """What is visible of it."""
    return "".join("".join(text).split())


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Dr. Smith met Mr. J. R. Jones, e.g. at 5 p.m. today.", "He paid $3.50.", "Why?", "Fine!"]),
        ("en", ["See www.Example.com or no. 5.", "It is so.", '"Go away," he said.', "Then?"]),
        ("en-GB", ["Dr. Smith met Mrs. Jones.", "So be it."]),
        ("es", ["El Sr. Pérez y la Sra. López ganaron 3.50 en EE. UU. ayer.", "¿Qué tal?", "¡Hola!", "Fin."]),
        ("es-MX", ["El Dr. Pérez llegó.", "«Vete.»", "Se fue."]),
        ("de", ["Am 12. Mai kam Prof. Dr. Weber z. B. nach Berlin.", "„Geh!“", "Er ging d. h. bald."]),
        ("fr", ["M. Dupont et J.-P. Sartre sont là.", "« Va ! » dit-il.", "Il part."]),
        ("ru", ["Он жил в 1905 г. в Москве.", "А. С. Пушкин, т. е. поэт, ушёл…", "Потом пришёл."]),
        ("bn", ["ডা. রহমান ও মো. আলী এলেন।", "তুমি কী খাও?", "মূল্য ৩.৫০ টাকা।।", "শেষ"]),
        ("bn", ["“সে যায়।”", "তারপর ২৪.০৪.২০১২ তারিখে ড. ইউনূস এলেন।", "চলো!"]),
        ("hi", ["डॉ. शर्मा और प्रो. वर्मा आए।", "मूल्य ३.५० है॥", "क्या?", "अन्त"]),
        ("ur", ["ڈاکٹر آیا۔", "تم کیا کھاتے ہو؟", "اس نے کہا ”جاؤ۔“", "پھر وہ گیا۔"]),
        ("ar", ["قال د. أحمد إن السعر ٣٫٥٠ دولار.", "هل أنت هنا؟", "نعم!", "انتهى."]),
        ("zh", ["你好。", "再见！", "他说：“走吧。”", "然后……价格是3.50元。"]),
        ("ja", ["「行こう。」", "と彼は言った。", "本当？", "はい！"]),
        ("my", ["ပြီးနောက်၊ သွားသည်။", "နေကောင်းလား။"]),
        ("km", ["គាត់ទៅ។", "សុខសប្បាយទេ?", "ថ្លៃ ៣.៥០ រៀល៕", "ចប់"]),
        ("am", ["ሰላም።", "እንዴት ነህ፧", "ዶ/ር አበበ ሄደ፡፡", "ደህና።"]),
        ("hy", ["Բարեւ։", "Ինչպե՞ս ես, ասաց։", "Արժե 3.50։"]),
        ("bo", ["བཀྲ་ཤིས།", "བདེ་ལེགས༎", "ཞུ"]),
        ("th", ["ราคา 3.50 บาท ขอบคุณ"]),
        (
            "th",
            [
                "กรุงเทพมหานครเป็นเมืองหลวงและนครที่มีประชากรมากที่สุดของประเทศไทย",
                "เป็นศูนย์กลางการปกครอง การศึกษา การคมนาคมขนส่ง",
                "การเงินการธนาคาร",
            ],
        ),
        ("hi", ["राम घर गया |", "सीता बाज़ार गई |", "वे खुश थे |"]),
        ("bn", ["আমি ভাত খাই|", "তুমি কী খাও?"]),
        ("el", ["Πού πας\u037e", "Πάω σπίτι."]),
        ("id", ["Ia tinggal di Jl. Sudirman No. 5.", "PT. Maju Jaya ada di sana.", "Bapak Drs. Ahmad datang."]),
        ("xx", ["What has no rules of its own ends so.", "And so!"]),
    ],
)
def test_sentences_end_where_their_language_says_so(language: str, sentences: list[str]) -> None:
    """Marks of each script end sentences; abbreviations, initials, numbers and small letters keep them whole."""
    assert split_sentences(" ".join(sentences), language) == sentences


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("bn", ["আমি ভাত খাই।", "তুমি কী খাও?", "সে যায়।।", "শেষ"]),
        ("zh", ["你好。", "再见！"]),
        ("my", ["သွားသည်။", "နေကောင်းလား။"]),
        ("en", ["One ends.\u200b", "Another begins."]),
    ],
)
def test_marks_of_scripts_without_full_stops_need_no_space(language: str, sentences: list[str]) -> None:
    """People often leave it out."""
    assert split_sentences("".join(sentences), language) == sentences


@pytest.mark.parametrize(
    ("document", "sentences"),
    [
        (
            "Well... perhaps. Well… perhaps. Well... Perhaps.",
            ["Well... perhaps.", "Well… perhaps.", "Well...", "Perhaps."],
        ),
        ("1. First comes this.\n2. Then that.\n(3) Done.", ["1. First comes this.", "2. Then that.", "(3) Done."]),
        ("A title\n\nwith a text\nover two lines.", ["A title", "with a text\nover two lines."]),
        ("One.\r\n \t\r\ntwo\n \n\nthree", ["One.", "two", "three"]),
        ("He said it. 'Go.' Then he went.", ["He said it.", "'Go.'", "Then he went."]),
        ("  \n\n \t", []),
        ("", []),
    ],
)
def test_ellipses_lists_quotes_and_empty_lines(document: str, sentences: list[str]) -> None:
    """What holds for every language."""
    assert split_sentences(document, "en") == sentences


def test_a_long_text_without_an_end_is_split_at_its_lines() -> None:
    """A poem, a table or a script without marks is no single sentence."""
    line = "สวัสดีครับ " * 10
    document = "\n".join([line] * (MAX_CHARACTERS // len(line) + 2))
    assert split_sentences(document, "xx") == [line.strip()] * (document.count("\n") + 1)


def test_a_text_without_ends_and_lines_is_cut_between_words() -> None:
    """No sentence is longer than what is looked at in one go, and no word is cut that need not be."""
    sentences = split_sentences("word " * 1000 + "x" * (2 * BLOCK_CHARACTERS), "en")
    assert max(map(len, sentences)) <= BLOCK_CHARACTERS
    assert {word for sentence in sentences[:2] for word in sentence.split()} == {"word"}


def test_a_sentence_that_lies_across_two_blocks_stays_whole() -> None:
    """Long documents are looked at in pieces, whose ends leave no trace."""
    sentences = [f"Dr. Smith said this for the time number {number}." for number in range(200)]
    assert split_sentences(" ".join(sentences), "en") == sentences


def test_halves_of_characters_are_replaced() -> None:
    """JSON can spell what no tokenizer takes."""
    assert split_sentences("A \ud83d cat. Two\udc00.", "en") == ["A \ufffd cat.", "Two\ufffd."]


def test_a_text_that_makes_the_library_fail_is_one_piece(capfd: pytest.CaptureFixture[str]) -> None:
    """One odd document does not end a training run."""
    text = "Plan B\u2028. Next."
    with pytest.raises(BaseException, match="char boundary"):
        sentencex.segment("en", text)
    assert segment_safely(text, "en") == [text]
    assert split_sentences(text, "en") == ["Plan B\u2028.", "Next."]
    assert "panicked" in capfd.readouterr().err


@given(st.text(alphabet=MARKS, max_size=200), st.sampled_from(LANGUAGES))
def test_no_character_but_white_space_is_lost(document: str, language: str) -> None:
    """The sentences hold every visible character of the document, in order, and are stripped."""
    sentences = split_sentences(document, language)
    assert joined(sentences) == joined(document)
    assert [sentence.strip() for sentence in sentences if sentence] == sentences


@given(st.text(max_size=100), st.from_regex(r"\A[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*\Z"))
def test_any_text_in_any_language_is_split(document: str, language: str) -> None:
    """Neither all of Unicode nor an unheard-of language makes it fail."""
    assert joined(split_sentences(document, language)) == joined(document)


@given(st.text(alphabet=MARKS, min_size=1, max_size=20), st.sampled_from(LANGUAGES))
def test_long_and_odd_texts_are_split_like_any_other(pattern: str, language: str) -> None:
    """Whatever is repeated a thousand times is neither lost nor does it take for ever."""
    document = pattern * 1000
    assert joined(split_sentences(document, language)) == joined(document)
