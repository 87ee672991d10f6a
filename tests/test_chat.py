"""What notebooks test badly: processes that are killed, threads, logs, and models on disk."""
import json, logging, os, signal, subprocess, sys, threading, time
from pathlib import Path

import pytest

from dew_nb.evaluation.attacks.base import WordDeletion, change_report
from dew_nb.evaluation.attacks.translation import RoundTrip, Translate
from dew_nb.evaluation.attacks.chat import ChatClient
from dew_nb.evaluation.attacks.endpoint import ChatError, ChatRefused, LocalServer
from dew_nb.evaluation.texts.content import ContentCache, content_key
from quick import ends_within

echo = lambda body: body["messages"][-1]["content"].upper()

ASK = """
import sys
from dew_nb.evaluation.attacks.chat import ChatClient
chat = ChatClient(sys.argv[1], "m", concurrency=2, cache=sys.argv[2])
print(chat.ask([f"q{i}" for i in range(30)])[-1])
"""


def run_asker(url, db):
    env = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[1]))
    return subprocess.Popen([sys.executable, "-c", ASK, url, str(db)], env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_process_resumes(tmp_path):
    "SIGKILL in the middle: the second run asks only what the first had no answer to"
    with LocalServer(echo, delay=.1) as srv:
        p = run_asker(srv.url, tmp_path / "chat.db")
        deadline = time.time() + 120
        while len(srv.requests) < 10 and time.time() < deadline and p.poll() is None: time.sleep(.02)
        assert p.poll() is None, p.communicate()
        p.send_signal(signal.SIGKILL)
        p.communicate()
        first = len(srv.requests)
        assert 10 <= first < 30
        kept = len(ContentCache(tmp_path / "chat.db"))
        assert first - 2 <= kept + 2 and kept >= 6        # at most the two under way are lost
        srv.delay = 0
        again = ChatClient(srv.url, "m", concurrency=2, cache=tmp_path / "chat.db")
        assert again.ask([f"q{i}" for i in range(30)])[-1] == "Q29"
        assert len(srv.requests) - first == 30 - kept
        assert len(ContentCache(tmp_path / "chat.db")) == 30


def test_key_is_in_no_log_and_no_cache(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TEST_CHAT_KEY", "key-that-must-not-leak")
    caplog.set_level(logging.DEBUG)
    answers = [(500, {}, "key-that-must-not-leak"), "fine"]
    with LocalServer(lambda body: answers.pop(0)) as srv:
        chat = ChatClient(srv.url, "m", api_key_env="TEST_CHAT_KEY", backoff=.01, cache=tmp_path / "c.db")
        assert chat.ask(["?"]) == ["fine"]
        assert srv.seen_headers[0]["authorization"] == "Bearer key-that-must-not-leak"
    assert "retry 1" in caplog.text
    assert "must-not-leak" not in caplog.text + repr(chat) + str(vars(chat))
    assert b"must-not-leak" not in (tmp_path / "c.db").read_bytes()


def test_key_over_plain_http_to_another_machine_warns(monkeypatch):
    monkeypatch.setenv("TEST_CHAT_KEY", "k")
    with pytest.warns(UserWarning, match="unencrypted"):
        ChatClient("http://example.org/v1", "m", api_key_env="TEST_CHAT_KEY")


def test_redirect_does_not_carry_the_key_away(monkeypatch):
    monkeypatch.setenv("TEST_CHAT_KEY", "k")
    with LocalServer(echo) as other, LocalServer(lambda b: (307, {"Location": other.url}, "")) as srv:
        with pytest.raises(ChatError):
            ChatClient(srv.url, "m", api_key_env="TEST_CHAT_KEY", max_retries=0).ask(["?"])
        assert other.requests == []


def test_failure_stops_the_rest_and_keeps_what_was_under_way(tmp_path):
    def reply(body):
        q = body["messages"][-1]["content"]
        if q == "q0": return 403, {}, "no"
        time.sleep(.2)
        return q
    with LocalServer(reply) as srv:
        chat = ChatClient(srv.url, "m", concurrency=3, cache=tmp_path / "c.db")
        with pytest.raises(ChatRefused, match="status 403: no"):
            chat.ask([f"q{i}" for i in range(50)])
        assert len(srv.requests) < 15                      # not all fifty
        assert len(chat.cache) == len(srv.requests) - 1    # what was paid for is kept


def test_a_long_wait_does_not_hold_up_giving_up():
    "While one question waits for its retry, another fails for good: the run ends at once"
    def reply(body):
        bad = body["messages"][-1]["content"] == "bad"
        return (400, {}, "no") if bad else (429, {"Retry-After": "60"}, "later")
    with LocalServer(reply) as srv:
        with ends_within(50), pytest.raises(ChatRefused): ChatClient(srv.url, "m").ask(["slow", "bad"])


def test_cache_is_shared_by_threads_and_processes(tmp_path):
    a, b = ContentCache(tmp_path / "c.db"), ContentCache(tmp_path / "c.db")
    def work(c, n):
        for i in range(n, n + 50): c.put(content_key(i), i)
    ts = [threading.Thread(target=work, args=(c, n)) for c, n in [(a, 0), (a, 50), (b, 100), (b, 25)]]
    for t in ts: t.start()
    for t in ts: t.join()
    assert len(a) == 150 and all(b.get(content_key(i)) == i for i in range(150))


def test_attack_keeps_finished_chunks_when_it_dies(tmp_path):
    a, calls = WordDeletion(.3, cache=tmp_path / "a.db"), []
    whole = a.attack
    def dies(texts, seeds):
        calls.append(len(texts))
        if len(calls) == 3: raise KeyboardInterrupt
        return whole(texts, seeds)
    a.attack, a.chunk = dies, 5
    texts = [f"one two three four five six {i}" for i in range(20)]
    with pytest.raises(KeyboardInterrupt): a(texts)
    assert len(a.cache) == 10
    assert a(texts) == WordDeletion(.3)(texts)
    assert len(calls) == 5                                 # 2 before, the one that died, 2 after


models = Path(os.environ.get("DEW_MODELS", "nowhere"))
needs_mt = pytest.mark.skipif(not (models / "opus-mt-en-fr-int8").is_dir(), reason="DEW_MODELS has no opus-mt folders")


@needs_mt
def test_round_trip_keeps_meaning_and_paragraphs():
    texts = ["The train was late. Nobody complained.\n\nThe rain had stopped by then.", "  ", "One word"]
    trip = RoundTrip(Translate("opus-mt-en-fr-int8"), Translate("opus-mt-fr-en-int8"))
    out = trip(texts)
    assert out[1] == "  " and out[0].count("\n\n") == 1
    assert "train" in out[0].lower() and "rain" in out[0].lower()
    assert trip([texts[0]]) == out[:1]
    assert change_report(texts, out).empty == ()


@needs_mt
def test_marian_folder_path(tmp_path):
    "A tiny MarianMT model with random weights: loading, batches and decoding are the real ones"
    import shutil, torch
    import sentencepiece as spm
    from transformers import MarianConfig, MarianMTModel
    for f in ("source.spm", "target.spm"): shutil.copy(models / "opus-mt-en-fr-int8" / f, tmp_path / f)
    pieces = [spm.SentencePieceProcessor(str(tmp_path / f)) for f in ("source.spm", "target.spm")]
    words = dict.fromkeys(["</s>", "<unk>"] + [p.id_to_piece(i) for p in pieces for i in range(3, len(p))] + ["<pad>"])
    vocab = {w: i for i, w in enumerate(words)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(dict(source_lang="en", target_lang="fr",
                                                                     tokenizer_class="MarianTokenizer")))
    torch.manual_seed(0)
    pad = vocab["<pad>"]
    MarianMTModel(MarianConfig(vocab_size=len(vocab), d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, forced_eos_token_id=0,
        max_position_embeddings=512)).save_pretrained(tmp_path)
    t = Translate(tmp_path, name="tiny")
    out = t(["It rained. It stopped.\n\nThen it snowed.", "It rained."])
    assert len(out) == 2 and out[0].count("\n\n") >= 1 and out[0].startswith(out[1])
