"Generation with transformers: what is refused, what is drawn, and what else `generate` takes"
import copy
import gc
import weakref

import pytest
import torch
from transformers import GenerationConfig

from dew_nb import DEW, DEWConfig, SecretKey
from dew_nb.mark.generation import prompt_names
from quick import Letters, toy_host

KEY = SecretKey(b'an example key: never use this one')
CONFIG = dict(rule='tournament', contexts='compiled', candidates='top_m', m=64, n=32, layers=12, context_width=32)


@pytest.fixture(scope='module')
def wm(): return DEW.build(toy_host(), Letters(), KEY, DEWConfig(**CONFIG), progress=False)


@pytest.fixture(scope='module')
def many(wm): return DEW.build(wm.host, Letters(), KEY, DEWConfig(**CONFIG, keys=8), progress=False)


def write(wm, mark, rows=1, tokens=12, seed=0, **how):
    "What plain transformers writes with a mark, and the width of the prompt"
    tok = wm.host.tokenizer
    inp = tok(['The old harbour']*rows, return_tensors='pt')
    torch.manual_seed(seed)
    kw = dict(max_new_tokens=tokens, top_k=0, pad_token_id=tok.pad_token_id) | how
    with torch.no_grad(): out = wm.host.model.generate(**inp, **mark, **kw)
    return tok.batch_decode(out[:, inp['input_ids'].shape[1]:], skip_special_tokens=True)


MARKS = dict(processor=lambda wm: dict(logits_processor=[wm.processor()]), config=lambda wm: dict(watermarking_config=wm.watermarking_config()))


@pytest.mark.parametrize('mark', MARKS.values(), ids=MARKS)
@pytest.mark.parametrize('how', [dict(do_sample=False), dict(do_sample=False, rows=2), dict(do_sample=False, num_beams=3),
                                 dict(do_sample=True, num_beams=3), dict(do_sample=True, num_beams=2, rows=2),
                                 dict(do_sample=False, prompt_lookup_num_tokens=3)], ids=str)
def test_what_is_not_drawn_is_refused(wm, mark, how):
    "Greedy decoding and beams, drawn or not: by a processor as by a watermarking_config"
    with pytest.raises(ValueError, match='do_sample=True'): write(wm, mark(wm), **how)


@pytest.mark.parametrize('mark', MARKS.values(), ids=MARKS)
def test_greedy_drafts_are_refused(wm, mark):
    with pytest.raises(ValueError, match='do_sample=True'):
        write(wm, mark(wm), do_sample=False, assistant_model=copy.deepcopy(wm.host.model))


@pytest.mark.parametrize('mark', MARKS.values(), ids=MARKS)
@pytest.mark.parametrize('how', [dict(), dict(rows=3), dict(num_return_sequences=3), dict(prompt_lookup_num_tokens=3),
                                 dict(use_cache=False)], ids=str)
def test_what_is_drawn_is_marked(wm, mark, how):
    texts = write(wm, mark(wm), do_sample=True, tokens=32, **how)
    assert all(r.z > 3 for r in wm.detector().detect(texts))


def test_low_entropy_is_no_alarm(wm):
    "All tokens are the likeliest, and drawn nevertheless: the same text as without the mark"
    sure = dict(do_sample=True, temperature=1e-4)
    assert write(wm, MARKS['config'](wm), **sure) == write(wm, {}, **sure)


def test_a_processor_looks_again_at_each_generation(wm):
    "One that has seen sampling is not blind to greedy decoding afterwards"
    mark = MARKS['processor'](wm)
    write(wm, mark, do_sample=True)
    with pytest.raises(ValueError, match='do_sample=True'): write(wm, mark, do_sample=False)
    write(wm, mark, do_sample=True)


def test_a_loop_that_draws_with_its_own_numbers_says_so(wm):
    def loop(p):
        ids, g = wm.host.tokenizer('The old harbour', return_tensors='pt')['input_ids'], torch.Generator().manual_seed(0)
        with torch.no_grad():
            for _ in range(40):
                s = p(ids, wm.host.model(ids).logits[:, -1])
                ids = torch.cat([ids, torch.multinomial(s.softmax(-1), 1, generator=g)], 1)
        return wm.host.tokenizer.decode(ids[0, 3:])
    with pytest.raises(ValueError, match='drawn=True'): loop(wm.processor())
    assert wm.detector().detect(loop(wm.processor(drawn=True))).z > 3


def test_a_bias_marks_greedy_text_and_beams(wm):
    bias = DEW.build(wm.host, Letters(), KEY, DEWConfig(rule='bias', contexts='compiled', n=32, context_width=32, lam=6.), progress=False)
    for how in (dict(do_sample=False), dict(do_sample=False, num_beams=2), dict(do_sample=True, num_beams=2)):
        assert write(bias, MARKS['processor'](bias), **how) != write(bias, {}, **how)


def test_assisted_generation_is_marked(many):
    "Below temperature 1 too; a text keeps its sub-key while drafts are taken back, with a known length of the prompt and without"
    small, P = copy.deepcopy(many.host.model), len(many.host.tokenizer('The old harbour')['input_ids'])
    small.generation_config.update(num_assistant_tokens=2, num_assistant_tokens_schedule='constant')
    with torch.no_grad(): small.lm_head.weight.mul_(.5)                            # drafts that are often refused
    how, texts = dict(temperature=.7, assistant_model=small), []
    for length in (None, P): texts += write(many, dict(watermarking_config=many.watermarking_config(length)), tokens=40, do_sample=True, **how)
    texts.append(many.generate('The old harbour', max_new_tokens=40, **how))
    assert all(r.p_value < 1e-3 for r in many.detector().detect(texts))


def test_a_processor_before_warpers_is_refused_with_an_assistant_too(wm):
    with pytest.raises(ValueError, match='give generate.watermarking_config'):
        write(wm, MARKS['processor'](wm), tokens=40, do_sample=True, temperature=.7, assistant_model=copy.deepcopy(wm.host.model))


def test_stop_strings(wm):
    "A text ends with the first of them; the others go on; as an argument and in a configuration"
    prompts, tok = ['The old harbour', 'Bread and salt'], wm.host.tokenizer
    free = wm.generate(prompts, max_new_tokens=24, seed=1)
    word = free[0].split()[5]
    for how in (dict(stop_strings=[word]), dict(generation_config=GenerationConfig(stop_strings=[word], eos_token_id=tok.eos_token_id))):
        got = wm.generate(prompts, max_new_tokens=24, seed=1, **how)
        assert got[0] == free[0][:free[0].index(word) + len(word)]
        assert free[1].startswith(got[1]) and (word in got[1] or got[1] == free[1])
    assert wm.generate(prompts[0], max_new_tokens=9, seed=1, mark=False, stop_strings=[word]).count(word) <= 1


def test_seeds_and_sub_keys(many):
    "By default a prompt has the same text and the same sub-key at each call; without a seed both are drawn afresh"
    ask = lambda **how: many.generate('The old harbour', max_new_tokens=6, **how)
    assert ask() == ask(seed=0) != ask(seed=None)
    subkey = lambda *seed: many.rule.draw([f'{n}/0' for n in prompt_names(['The old harbour'], *seed)])[0]
    assert len({subkey() for _ in range(5)}) == 1 and len({subkey(None) for _ in range(40)}) > 4


def test_a_scheme_that_marked_is_let_go():
    "Nothing keeps a scheme, its tables and its host after their last user"
    one = DEW.build(toy_host(), Letters(), KEY, DEWConfig(**CONFIG), progress=False)
    one.generate(['a b'], max_new_tokens=4, seed=0)
    one.processor()
    left = weakref.ref(one)
    del one
    gc.collect()
    assert left() is None
