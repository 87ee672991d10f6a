"""The same help for everybody: peers read with position weights and with the host, as DEW is

    for i in 0 1 2 3; do python nbs/studies/peers_help.py run --work results/peers_help --out results/peers_help_out --worker $i & done; wait     # on a GPU, side by side
    python nbs/studies/peers_help.py collect --work results/peers_help --out results/peers_help_out                            # if the run was cut: what there is
    python nbs/studies/peers_help.py run --host smollm2-135m --answers 3 --programs 2 --tokens 40 --extra 2 --work WORK --out OUT
    python nbs/studies/peers_help.py bayes --out results/peers_help_out                                                       # the authors' detector of SynthID; a CPU will do
    python nbs/studies/peers_help.py answers --results results/contexts_chat --out results/peers_help_out                     # answers of contexts_chat.toml, three keys and paraphrases, read without the host; a CPU will do
    python nbs/studies/peers_help.py levels --out results/peers_help_out                                                      # the default without the host: FPR under 20 more keys, 20 draws of deleted words; a CPU will do
    python nbs/studies/peers_help.py pack --out results/peers_help_out                                                        # writes nbs/studies/data/peers_help*

The host answers questions and writes programs (chat prompts, temperature 0.7, top-p 0.9, at least 50 tokens) with each scheme under three keys, and without a mark: as contexts_chat.toml and real_code.toml do. Marked texts are
read as they are and with 10% and 30% of their words deleted; unmarked ones under the three keys and under more. Readers:

own             the scheme's own p-value; needs its tokenizer
weighted        SynthID alone: layers with falling weights
weights         positions weighted by a table of room that was learnt from unmarked texts of the host after other prompts; needs no network
host, prompt    the likelihood ratio with a teacher-forced host, without the prompt and with it: Π(ε + (1-ε) q/p), ε = .5. p is what the sampler draws from, q what the scheme makes of it under its key.
                KGW and Unigram change p on average too: q is divided by its mean over 128 lists, one of them the key's
ewd …           KGW and Unigram: z with weights by the host's spike entropy (Lu et al. 2024), without the prompt and with it
sweet …         KGW and Unigram: only positions whose entropy is above a threshold (Lee et al. 2023), which is chosen on unmarked texts after other prompts; the text was marked everywhere

Only first occurrences count: of a context (SynthID, as its authors do), of context and token (KGW, Unigram, EXP), and for DEW of pairs whose kernel with an earlier one is above .3. The 256 likeliest tokens of a
position are looked at; what is left is one lump. Units of work are claimed by files: several processes of the same command share them, and what is there is not made again.
Writes peers_help.parquet (a row for each text, attack, key and reader), peers_help.json, room_host.safetensors (the table), g_synthid*.npz (bits for `bayes`), texts_peers.jsonl.xz.
"""
import argparse, json, os, time, traceback
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch.nn.utils.rnn import pad_sequence

from dew_nb.evaluation.attacks.base import delete_words
from dew_nb.evaluation.schemes.lists import shared_backend
from dew_nb.evaluation.schemes.synthid import new_contexts
from dew_nb.evaluation.studies.bench import Bench
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.texts.content import content_seed, machine, read_texts, write_texts
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.texts.frames import write_frame
from dew_nb.mark.generation import prompt_ids
from dew_nb.mark.room import RoomTable
from dew_nb.mark.windows import text_windows
from dew_nb.models.artefacts import load_artefact
from dew_nb.models.tokenization import TokenUnits, special_ids
from dew_nb.read.host_reader import log_ratios
from dew_nb.read.host_view import HostView, Pairs, join_views, place_rows
from dew_nb.read.room_learning import RoomNotes, room_table

T, TOP_P, EPS, NEAR, TOP, OTHERS, LEAST = .7, .9, .5, .3, 256, 127, 1e-5
SCHEMES = {'DEW standard': ('dew', dict(preset='standard', room=None)), 'SynthID 3': ('synthid', dict(ngram_len=3)), 'KGW 1': ('kgw', dict(width=1, gamma=.5, delta=2.)), 'EXP': ('exp', {}),
           'DEW ngram 2': ('dew', dict(preset='tournament', contexts='ngram', k=2)), 'SynthID 4': ('synthid', dict(ngram_len=4)), 'Unigram': ('unigram', dict(gamma=.5, delta=2.))}
ATTACKS = {'none': 0., '10% deleted': .1, '30% deleted': .3}
KINDS = dict(answers='questions', programs='code')
SEEDS, TRAIN, CAL = (0, 1, 2), (200, 201), 900                     # keys of the study, of what a detector is trained on; number of the calibration texts
GAMMA, DELTA = .5, 2.
MODULUS = float((1-GAMMA)*(np.exp(DELTA)-1)/(1 + (np.exp(DELTA)-1)*GAMMA))  # of the spike entropy

# ---------------------------------------------------------------- what the host expects
class Look:
    "The host's distribution at every position of some texts: logarithms at the sampler's temperature, before top-p"
    def __init__(self, ids, before, host=None, kept=None):
        self.ids, self.size = ids, np.array([len(x) for x in ids])
        self.start = np.cumsum(self.size) - self.size
        x = self._pass(host, before) if kept is None else kept
        self.top, self.cand, self.own, self.entropy, self.spike = x

    @torch.no_grad()
    def _pass(self, host, before, rows=32, block=2048):
        model, n, dev = host.model, int(self.size.sum()), host.model.device
        top, cand = torch.zeros(n, TOP, device=dev), torch.zeros(n, TOP, dtype=torch.int32, device=dev)
        own, entropy, spike = (torch.zeros(n, device=dev) for _ in range(3))
        head, order = model.get_output_embeddings(), sorted((i for i in range(len(self.ids)) if self.size[i]), key=lambda i: len(before[i]) + self.size[i])
        for k in range(0, len(order), rows):
            some = order[k:k+rows]
            full = [torch.as_tensor([*before[i], *self.ids[i].tolist()]) for i in some]
            x = pad_sequence(full, batch_first=True).to(dev)
            mask = pad_sequence([torch.ones(len(r), dtype=torch.long) for r in full], batch_first=True).to(dev)
            h = model.base_model(input_ids=x, attention_mask=mask, use_cache=False).last_hidden_state
            row = np.repeat(np.arange(len(some)), self.size[some])
            pos = np.concatenate([np.arange(self.size[i]) for i in some])
            at = torch.as_tensor(np.array([len(before[i]) for i in some])[row] + pos, device=dev)
            to, row = torch.as_tensor(self.start[some][row] + pos, device=dev), torch.as_tensor(row, device=dev)
            for r,a,t in zip(row.split(block), at.split(block), to.split(block)):
                logp = (head(h[r, a-1]).float()/T).log_softmax(-1)
                top[t], c = logp.topk(TOP, 1)
                cand[t], own[t] = c.int(), logp.gather(1, x[r, a][:,None])[:,0]
                p = logp.exp()
                spike[t] = (p/(1 + MODULUS*p)).sum(1)
                entropy[t] = -(p*logp.clamp_min(-50)).sum(1)
        return top, cand, own, entropy, spike

    def flat(self, doc, pos): return torch.as_tensor(self.start[doc] + pos, device=self.top.device)

    def nucleus(self, at, came):
        "Of positions: logarithms of what is drawn from, (N, m); their ids; that of the token that came; its column, m: none"
        logp, ids = self.top[at], self.cand[at].long()
        p = logp.exp()
        kept = torch.where(p.cumsum(1) - p < TOP_P, p, 0.)
        m = max(1, int((kept > 0).sum(1).max())) if len(at) else 1
        values = (kept/kept.sum(1, keepdim=True)).log()[:, :m]
        return values, ids[:, :m], *chosen(values, ids[:, :m], came)

def chosen(values, ids, came):
    "The value of the token that came, and its column"
    m, hit = values.shape[1], ids == came[:,None]
    column = torch.where(hit.any(1), hit.int().argmax(1), m)
    return torch.where(column < m, values.gather(1, column.clamp_max(m-1)[:,None])[:,0], -torch.inf), column

def in_blocks(live, work):
    "Positions with about as many candidates, in blocks; and how many that are"
    width = 2**torch.log2(live.clamp_min(1).float()).ceil().long()
    for m in width.unique().tolist():
        for i in (width == m).nonzero()[:,0].split(max(1, work//m)): yield i, m

# ---------------------------------------------------------------- schemes
def ids_of(host, texts): return [np.array(e.ids, np.int64) for e in shared_backend(host).encode_batch(list(texts), add_special_tokens=False)]

def places(ids, k, special, contexts=None):
    "Text, position, context and token of what counts: the first time a pair occurs, or a context within so many"
    parts = [np.zeros((0, k+3), np.int64)]
    for d,x in enumerate(ids):
        w, pos = text_windows(x, k, special)
        if len(pos): parts.append(np.column_stack([np.full(len(pos), d), pos, w, x[pos]]))
    a = np.concatenate(parts)
    if contexts: keep = new_contexts(a[:,0], a[:,2:-1], contexts)
    else: keep = np.sort(np.unique(np.delete(a, 1, 1), axis=0, return_index=True)[1])
    a = a[keep]
    return a[:,0], a[:,1], a[:,2:-1], a[:,-1]

def mixed(r): return torch.log(EPS + (1-EPS)*r.double())
def total(doc, x, n): return np.bincount(doc, x if isinstance(x, np.ndarray) else x.double().cpu().numpy(), n)
def result(**kw): return {k: np.asarray(v, np.float64) for k,v in kw.items()}
def weighted_z(doc, w, x, sd, n):
    "z of Σ w x, x having mean 0 and this deviation"
    s, v = total(doc, w*x, n), total(doc, w*w, n)
    z = np.where(v > 0, s/(sd*np.sqrt(np.maximum(v, 1e-30))), 0.)
    return result(z=z, p_value=np.where(v > 0, stats.norm.sf(z), 1.))

class Synth:
    "SynthID"
    def __init__(self, s): self.s, self.k = s, s.params['ngram_len'] - 1
    def read(self, ids, table, special, dev):
        self.n, self.at = len(ids), places(ids, self.k, special, self.s.params['history'])
        doc, pos, ctx, came = self.at
        self.proc = self.s.make(dev)
        self.ctx, self.came = torch.as_tensor(ctx, device=dev), torch.as_tensor(came, device=dev)
        g = self.bits(self.ctx, self.came[:,None])[:,0].cpu().numpy()
        self.g, q = g, float(self.proc.sampling_table.float().mean())
        count, falling = np.bincount(doc, minlength=self.n), np.linspace(10, 1, g.shape[1])/np.linspace(10, 1, g.shape[1]).sum()
        one, sd = g @ falling - q, np.sqrt(q*(1-q)*(falling**2).sum())
        hits = total(doc, g.sum(1).astype(float), self.n)
        yield 'own', result(p_value=stats.binom.sf(hits - 1, count*g.shape[1], q), z=np.where(count > 0, (hits/np.maximum(count*g.shape[1], 1) - q)*np.sqrt(count*g.shape[1]/(q*(1-q))), 0.), n=count)
        yield 'weighted', weighted_z(doc, np.ones(len(doc)), one, sd, self.n)
        yield 'weights', weighted_z(doc, weights_at(table, ids, doc, pos), one, sd, self.n)
    def bits(self, ctx, ids):
        "(N, m, layers) of candidates"
        h = self.proc.accumulate_hash(torch.ones(len(ctx), dtype=torch.long, device=ctx.device), ctx)
        h = self.proc.accumulate_hash(h[:,None].expand_as(ids), ids[...,None])
        h = (h[...,None] + self.proc.keys)*6364136223846793005 + 1
        return self.proc.sampling_table[h % len(self.proc.sampling_table)]
    def ratios(self, look, work=1 << 20):
        doc, pos = self.at[:2]
        values, ids, own, column = look.nucleus(look.flat(doc, pos), self.came)
        r = torch.ones(len(own), dtype=torch.double, device=own.device)
        for i,m in in_blocks((values > -torch.inf).sum(1), work):
            m = min(m, values.shape[1])
            p0 = p = values[i, :m].double().exp()
            g = self.bits(self.ctx[i], ids[i, :m])
            for l in range(g.shape[2]): p = p*(1 + g[...,l] - (p*g[...,l]).sum(1, keepdim=True))
            c = column[i].clamp_max(m-1)[:,None]
            r[i] = torch.where(own[i] > -torch.inf, p.gather(1, c)[:,0]/p0.gather(1, c)[:,0], 1.)
        return r
    def host(self, look, name):
        yield name, result(log_e=total(self.at[0], mixed(self.ratios(look)), self.n))

class Exp:
    "EXP"
    def __init__(self, s): self.s, self.k = s, s.params['width']
    def read(self, ids, table, special, dev):
        from dew_nb.evaluation.schemes.exp import context_seeds, token_uniform
        self.n, self.at = len(ids), places(ids, self.k, special)
        doc, pos, ctx, came = self.at
        self.came, x = torch.as_tensor(came, device=dev), torch.as_tensor(ctx)
        self.u = token_uniform(context_seeds(x, self.s.key), torch.as_tensor(came))
        count, t = np.bincount(doc, minlength=self.n), total(doc, -np.log(self.u), self.n)
        yield 'own', result(p_value=np.where(count > 0, stats.gamma.sf(t, np.maximum(count, 1)), 1.), z=(t-count)/np.sqrt(np.maximum(count, 1)), n=count)
        w = weights_at(table, ids, doc, pos)
        s, m, v = total(doc, -w*np.log(self.u), self.n), total(doc, w, self.n), total(doc, w*w, self.n)
        some = v > 0
        m, v = np.where(some, m, 1.), np.where(some, v, 1.)
        yield 'weights', result(z=np.where(some, (s-m)/np.sqrt(v), 0.), p_value=np.where(some, stats.gamma.sf(s*m/v, m*m/v), 1.))     # the gamma law with this mean and variance
    def ratios(self, look):
        own = look.nucleus(look.flat(*self.at[:2]), self.came)[2].double()
        u = torch.as_tensor(self.u, device=own.device)
        return torch.where(own > -torch.inf, torch.exp(-own + torch.expm1(-own.clamp_min(-600))*torch.log1p(-u)), 1.)
    def host(self, look, name):
        yield name, result(log_e=total(self.at[0], mixed(self.ratios(look)), self.n))

def biased(look, at, green, came, draws=1, work=1 << 22):
    "What lists make of positions: (N,) probability of the token that came, (N,) mass of green tokens; both summed over draws. green(i, ids): (N, m) or (draws, N, m) bits of candidates"
    n = len(at)
    q, mass = torch.zeros(n, dtype=torch.double, device=look.top.device), torch.zeros(n, device=look.top.device)
    top = look.top[at]
    for i,m in in_blocks((top > np.log(LEAST)).sum(1), work//draws):
        logp, ids = top[i, :m], look.cand[at[i], :m].long()
        g = green(i, ids).float()
        rest = (1 - logp.exp().sum(1, keepdim=True)).clamp_min(0)
        p = torch.exp(logp + DELTA/T*g)
        p = p/(p.sum(-1, keepdim=True) + rest*float(1-GAMMA + GAMMA*np.exp(DELTA/T)))
        s, order = p.sort(-1, descending=True)
        kept = torch.where(s.cumsum(-1) - s < TOP_P, s, 0.)
        p = torch.zeros_like(p).scatter(-1, order, kept/kept.sum(-1, keepdim=True))
        each, p = (p*g).sum(-1), p.sum(0) if p.ndim > 2 else p
        q[i], mass[i] = chosen(p, ids, came[i])[0].double().clamp_min(0), each.sum(0) if each.ndim > 1 else each
    return q, mass

def drawn(look, draws, seed):
    "The same summed over drawn lists, at all positions"
    dev = look.own.device
    at, came, g = torch.arange(len(look.own), device=dev), torch.as_tensor(np.concatenate(look.ids), device=dev), torch.Generator(device=dev).manual_seed(seed)
    return biased(look, at, lambda i, ids: torch.rand(draws, *ids.shape, device=dev, generator=g) < GAMMA, came, draws)

class Lists:
    "KGW and Unigram"
    def __init__(self, s, tau): self.s, self.k, self.tau = s, s.green.width, tau
    def read(self, ids, table, special, dev):
        self.n, self.at = len(ids), places(ids, self.k, special)
        doc, pos, ctx, came = self.at
        self.came, self.hit = torch.as_tensor(came, device=dev), self.s.green.hits(np.column_stack([ctx, came]))
        p, count, hits = self.s.green.share, np.bincount(doc, minlength=self.n), total(doc, self.hit.astype(float), self.n)
        self.p, self.sd = p, np.sqrt(p*(1-p))
        yield 'own', result(p_value=stats.binom.sf(hits - 1, count, p), z=(hits - p*count)/(np.sqrt(np.maximum(count, 1))*self.sd), n=count)
        yield 'weights', weighted_z(doc, weights_at(table, ids, doc, pos), self.hit - p, self.sd, self.n)
        u, inv = np.unique(self.s.green.codes(ctx), return_inverse=True)
        self.packed = torch.from_numpy(self.s.green.bits(u)).to(dev) if len(u) else torch.zeros(1, 1, dtype=torch.uint8, device=dev)
        self.inv = torch.as_tensor(inv.reshape(-1), device=dev)
    def green(self, i, ids):
        inside = ids < self.s.green.vocab
        byte = self.packed[self.inv[i][:,None], ids.clamp_max(self.s.green.vocab-1)//8]
        return (byte >> (ids % 8).to(torch.uint8) & 1).bool() & inside
    def host(self, look, name):
        doc, pos = self.at[:2]
        at = look.flat(doc, pos)
        q, _ = biased(look, at, self.green, self.came)
        mean = (q + others(look)[at])/(OTHERS + 1)
        r = torch.where(mean > 0, q/mean.clamp_min(1e-300), 1.)
        yield name, result(log_e=total(doc, mixed(r), self.n))
        w = (look.spike[at] - 1/(1 + MODULUS)).clamp_min(0).double().cpu().numpy()
        yield f'ewd {name}', weighted_z(doc, w, self.hit - self.p, self.sd, self.n)
        high = look.entropy[at].cpu().numpy() > self.tau[name]
        count, hits = (total(doc, (high*x).astype(float), self.n) for x in (1, self.hit))
        yield f'sweet {name}', result(p_value=stats.binom.sf(hits - 1, count, self.p), z=(hits - self.p*count)/(np.sqrt(np.maximum(count, 1))*self.sd), n=count)

def others(look):
    "(P,) summed probability of the tokens that came under drawn lists; the same for every key"
    if not hasattr(look, 'drawn'): look.drawn = drawn(look, OTHERS, 1)[0]
    return look.drawn

class Dew:
    "DEW"
    def __init__(self, s): self.s, self.wm = s, s.watermark
    def read(self, ids, table, special, dev):
        self.ids = ids
        for name,wm in (('own', self.wm), ('weights', self.wm.with_room(table))):
            res = wm.detector(reading='raw').detect(self.texts, progress=False)
            yield name, result(p_value=[r.p_value for r in res], z=[r.z for r in res], n=[r.n_scored for r in res])
    def view(self, look, d):
        k, ids = self.wm.contexts.k, torch.as_tensor(self.ids[d], device=look.top.device)
        if len(ids) <= k: return None
        at = torch.arange(k, len(ids), device=ids.device)
        values, cand, own, column = look.nucleus(int(look.start[d]) + at, ids[at])
        c, on = place_rows(self.wm, ids, at, cand)
        keep = on.any(1)
        on = on[keep] if on.shape[1] == 1 else (on & (values > -torch.inf))[keep]
        return HostView(at[keep], values[keep], cand[keep], own[keep], column[keep], c[keep], on) if keep.any() else None
    def host(self, look, name):
        views = look.views = look.views if getattr(look, 'views', None) else [self.view(look, d) for d in range(len(self.ids))]     # of any key
        some = [d for d,v in enumerate(views) if v is not None]
        log_e = np.zeros(len(self.ids))
        if some:
            near = torch.cat([Pairs().nearest(self.wm, torch.as_tensor(self.ids[d], device=views[d].c.device)[views[d].at], views[d].c) for d in some])
            e = torch.where(near <= NEAR, mixed(log_ratios(self.wm.rule, join_views([views[d] for d in some])).exp()), 0.)
            log_e = total(np.repeat(some, [len(views[d]) for d in some]), e, len(self.ids))
        yield name, result(log_e=log_e)

def weights_at(table, ids, doc, pos):
    "Expected room of positions"
    out = np.zeros(len(doc))
    for d in np.unique(doc): out[doc == d] = table.expected(ids[d], pos[doc == d])
    return out

# ---------------------------------------------------------------- work
class Shop:
    "Models, texts, schemes: made when they are first wanted"
    def __init__(self, a):
        self.a, self.bench, self.schemes, self.corpora, self.looks = a, Bench(a.device, a.batch), {}, {}, {}
        if torch.cuda.is_available(): torch.set_num_threads(4)                 # several processes share the machine
        self.host = self.bench.host(a.host)
        self.dev, self.special = self.host.model.device, special_ids(self.host.tokenizer)
    def scheme(self, name, seed):
        kind, params = SCHEMES[name]
        if kind == 'dew' and name in self.schemes: return self.schemes[name].rekey(seed)
        s = find_scheme(kind)(self.host, self.bench.encoder('minilm') if kind == 'dew' else None, seed, name=name, **params)
        if kind == 'dew': s.watermark
        self.schemes[name] = s
        return s
    def prompts(self, kind, seed):
        if (kind, seed) not in self.corpora:
            n = getattr(self.a, kind)
            self.corpora[kind, seed] = build_corpus(self.host, KINDS[kind], 'calibration' if seed == CAL else 'evaluation', n, 30, 200, 0 if seed == CAL else seed).prompts
        return list(self.corpora[kind, seed])
    def texts(self, name, seed, kind): return [r['text'] for r in read_texts(self.a.work/f'texts_{name}_{seed}_{kind}.jsonl')]
    def table(self):
        if 'table' not in self.looks:
            t, meta = load_artefact(self.a.work/'room_host.safetensors', 'room')
            self.looks['table'] = RoomTable.from_state(t, meta, TokenUnits(self.host.tokenizer)), json.loads((self.a.work/'tau.json').read_text())['tau']
        return self.looks['table']
    def look(self, ids, prompts, known):
        tok = self.host.tokenizer
        return Look(ids, [prompt_ids(tok, [p if known else ''])['input_ids'][0].tolist() for p in prompts], self.host)
    def stored_look(self, ids, seed, kind, name):
        "Of unmarked texts, which every scheme reads"
        f = self.a.work/f'look_{seed}_{kind}_{name}.pt'
        if not f.exists():
            x = self.look(ids, self.prompts(kind, seed), name == 'prompt')
            tmp = f.with_suffix(f'.{os.getpid()}')
            torch.save((x.top, x.cand, x.own, x.entropy, x.spike, others(x)), tmp)
            os.rename(tmp, f)
        *kept, drawn = (y.to(self.dev) for y in torch.load(f, map_location=self.dev))
        x = Look(ids, None, kept=kept)
        x.drawn = drawn
        return x

def write(shop, name, seed, kind, marked=True, of=None):
    "Generate the texts of a unit"
    a, of = shop.a, seed if of is None else of
    s = shop.scheme(name, seed) if marked else find_scheme('none')(shop.host)
    prompts = shop.prompts(kind, of)
    g = dict(tokens=a.tokens, temperature=T, top_p=TOP_P, top_k=0, no_repeat_ngram=0, min_tokens=min(50, a.tokens))
    texts = shop.bench.generate(s, a.host, prompts, seed, g)
    f = a.work/f'texts_{name}_{seed}_{kind}.jsonl'
    f.with_suffix('.tmp').write_text(''.join(json.dumps(dict(i=i, text=t)) + '\n' for i,t in enumerate(texts)))
    os.rename(f.with_suffix('.tmp'), f)

def learn(shop):
    "The table of room, and the entropy thresholds of SWEET"
    texts, prompts = [], []
    for kind in KINDS: texts, prompts = texts + shop.texts('none', CAL, kind), prompts + shop.prompts(kind, CAL)
    ids = ids_of(shop.host, texts)
    looks = {n: shop.look(ids, prompts, n == 'prompt') for n in ('host', 'prompt')}
    x, came = looks['prompt'], torch.as_tensor(np.concatenate(ids), device=shop.dev)
    values, _, own, _ = x.nucleus(torch.arange(len(came), device=shop.dev), came)
    room, own = (np.split(y.exp().cpu().numpy(), x.start[1:]) for y in ((-torch.expm1(values.mul(2).logsumexp(1).clamp_max(0))).log(), own))
    table = room_table(shop.host, TokenUnits(shop.host.tokenizer), RoomNotes(ids, room, own), dict(temperature=T, top_p=TOP_P, texts=len(texts), command='python nbs/studies/peers_help.py run', split='calibration'))
    tau = {n: threshold_gain(x)[0] for n,x in looks.items()}
    (shop.a.work/'tau.json').write_text(json.dumps(dict(tau=tau, room=repr(table), machine=machine(shop.host), settings={k: getattr(shop.a, k) for k in ('host', 'answers', 'programs', 'tokens', 'extra', 'batch')})))
    table.save(shop.a.work/'room.tmp.safetensors')
    os.rename(shop.a.work/'room.tmp.safetensors', shop.a.work/'room_host.safetensors')

def threshold_gain(look, draws=8):
    "The entropy above which the expected z of green tokens is largest, and that z"
    mu = drawn(look, draws, 2)[1]/draws - GAMMA
    h, order = look.entropy.sort(descending=True)
    z = mu[order].double().cumsum(0)/torch.arange(1, len(h)+1, device=h.device).sqrt()
    best = int(z.argmax())
    return float(h[best]), float(z[best])

def reader_of(shop, name, seed, texts):
    kind, s = SCHEMES[name][0], shop.scheme(name, seed)
    r = dict(dew=lambda: Dew(s), synthid=lambda: Synth(s), exp=lambda: Exp(s)).get(kind, lambda: Lists(s, shop.table()[1]))()
    r.texts = texts
    return r

def rows_of(shop, r, ids, looks, **said):
    "Frames of all readers of one set of texts"
    parts = list(r.read(ids, shop.table()[0], shop.special, shop.dev))
    for n,x in looks.items(): parts += list(r.host(x, n))
    return [pd.DataFrame(dict(i=np.arange(len(ids)), reader=reader, **x)).assign(**said) for reader,x in parts]

def save_bits(shop, r, name, **said):
    "Bits of SynthID"
    f = shop.a.work/('g_' + '_'.join(str(x) for x in (name, *said.values())) + '.npz')
    np.savez_compressed(f, doc=r.at[0].astype(np.int16), g=np.packbits(r.g.astype(bool), axis=1), said=json.dumps(dict(scheme=name, n=r.n, **said)))

def read_marked(shop, name, seed, kind):
    "Readings of marked texts"
    own, out = shop.texts(name, seed, kind), []
    for attack,rate in ATTACKS.items():
        texts = [delete_words(t, rate, content_seed('deleted', kind, seed, i) % 2**31) if rate else t for i,t in enumerate(own)]
        ids, r = ids_of(shop.host, texts), reader_of(shop, name, seed, texts)
        looks = {n: shop.look(ids, shop.prompts(kind, seed), n == 'prompt') for n in ('host', 'prompt')}
        out += rows_of(shop, r, ids, looks, scheme=name, kind=kind, source='marked', attack=attack, key=seed, seed=seed)
        if name.startswith('SynthID'): save_bits(shop, r, name, kind=kind, source='marked', attack=attack, key=seed, seed=seed)
    return out

def read_unmarked(shop, name, seed, kind):
    "Readings of unmarked texts under the keys of the study and others"
    texts, out = shop.texts('none', seed, kind), []
    ids = ids_of(shop.host, texts)
    looks = {n: shop.stored_look(ids, seed, kind, n) for n in ('host', 'prompt')}
    for key in [*SEEDS, *(100 + j for j in range(shop.a.extra) if j % len(SEEDS) == seed)]:
        r = reader_of(shop, name, key, texts)
        out += rows_of(shop, r, ids, looks, scheme=name, kind=kind, source='unmarked', attack='none', key=key, seed=seed)
        if name.startswith('SynthID') and key in SEEDS: save_bits(shop, r, name, kind=kind, source='unmarked', attack='none', key=key, seed=seed)
    return out

def train_bits(shop, name, key):
    "Bits of what a detector is trained on: marked and unmarked answers after calibration prompts, under other keys"
    for source,texts in (('train marked', shop.texts(name, key, 'answers')), ('train unmarked', shop.texts('none', CAL, 'answers'))):
        ids, r = ids_of(shop.host, texts), reader_of(shop, name, key, texts)
        list(r.read(ids, shop.table()[0], shop.special, shop.dev))
        save_bits(shop, r, name, kind='answers', source=source, attack='none', key=key, seed=CAL)
    return []

def units(a):
    "Name, scheme, what it needs, when, what does it"
    out = []
    T_ = lambda n, s, k: f'texts_{n}_{s}_{k}'
    for kind in KINDS: out.append((T_('none', CAL, kind), None, [], 0, lambda shop, kind=kind: write(shop, 'none', CAL, kind, False)))
    out.append(('room_host', None, [T_('none', CAL, k) for k in KINDS], 0, learn))
    for seed in SEEDS:
        for kind in KINDS: out.append((T_('none', seed, kind), None, [], seed, lambda shop, s=seed, k=kind: write(shop, 'none', s, k, False)))
        for name in SCHEMES:
            for kind in KINDS:
                out.append((T_(name, seed, kind), name, [], seed, lambda shop, n=name, s=seed, k=kind: write(shop, n, s, k)))
                out.append((f'marked_{name}_{seed}_{kind}', name, ['room_host', T_(name, seed, kind)], seed, lambda shop, n=name, s=seed, k=kind: read_marked(shop, n, s, k)))
                out.append((f'unmarked_{name}_{seed}_{kind}', name, ['room_host', T_('none', seed, kind)], seed, lambda shop, n=name, s=seed, k=kind: read_unmarked(shop, n, s, k)))
    for name in SCHEMES:
        if not name.startswith('SynthID'): continue
        for key in TRAIN:
            out.append((T_(name, key, 'answers'), name, [], 1, lambda shop, n=name, s=key: write(shop, n, s, 'answers', of=CAL)))
            out.append((f'train_{name}_{key}', name, ['room_host', T_(name, key, 'answers'), T_('none', CAL, 'answers')], 1, lambda shop, n=name, s=key: train_bits(shop, n, s)))
    return out

def done(a, unit): return (a.work/'done'/unit).exists()

def started(pid):
    "When a process began, so that a number that is used again is told apart; None: there is none"
    try: return Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[19]
    except (FileNotFoundError, ProcessLookupError): return None

def claim(a, unit):
    "Whether this process may do a unit"
    f, me = a.work/'claims'/unit, f'{os.getpid()} {started(os.getpid())}'
    try:
        with open(f, 'x') as x: x.write(me)
        return True
    except FileExistsError: pass
    try: pid, when = f.read_text().split()
    except (FileNotFoundError, ValueError): return False          # just made or just removed
    if started(pid) != when: f.unlink(missing_ok=True)            # who claimed it is gone
    return False

def run(a):
    for d in (a.work, a.out, a.work/'claims', a.work/'done', a.work/'bad'): d.mkdir(parents=True, exist_ok=True)
    todo, shop = units(a), Shop(a)
    names = list(SCHEMES)
    turn = {n: (i - a.worker*2) % len(names) for i,n in enumerate(names)}
    print(f'{time.time()-a.t0:5.0f} s: {a.host} on {shop.dev}, {len(todo)} units', flush=True)
    def rank(u): return u[1] is not None, u[3] + 1.5*(u[1] not in shop.schemes and str(u[1]).startswith('DEW') and turn[u[1]] > 0), u[1] not in shop.schemes, turn.get(u[1], 0)
    while left := [u for u in todo if not done(a, u[0]) and u[0] not in bad(a) and not bad(a) & set(u[2])]:
        ready = sorted((u for u in left if all(done(a, n) for n in u[2])), key=rank)       # what others wait for first, then seed by seed, with schemes that are built
        mine = next((u for u in ready if claim(a, u[0])), None) if time.time() - a.t0 < a.until else 'stop'
        if mine == 'stop': return print(f'{time.time()-a.t0:5.0f} s: no time for {len(left)} units', flush=True)
        if mine is None: time.sleep(.5)
        else: do_one(a, shop, mine[0], mine[-1])
    if claim(a, 'collect'): collect(a)

def bad(a): return {f.name for f in (a.work/'bad').iterdir()}

def do_one(a, shop, unit, do, again=True):
    "Do a unit; one that fails twice is left out, and the others go on"
    t = time.time()
    try: out = do(shop)
    except Exception:
        print(f'{unit} failed:\n{traceback.format_exc()}', flush=True)
        if torch.cuda.is_available(): torch.cuda.empty_cache()
        if again: return do_one(a, shop, unit, do, False)
        return (a.work/'bad'/unit).touch()
    if out: pd.concat(out, ignore_index=True).to_parquet(a.work/f'{unit}.parquet', index=False)
    (a.work/'done'/unit).write_text(f'{time.time()-t:.2f}')
    print(f'{time.time()-a.t0:5.0f} s: {unit}, {time.time()-t:.1f} s', flush=True)

def collect(a):
    "All that comes out, small"
    a.out.mkdir(parents=True, exist_ok=True)
    known = json.loads((a.work/'tau.json').read_text())
    d = pd.concat([pd.read_parquet(f) for s in ('marked', 'unmarked') for f in sorted(a.work.glob(f'{s}_*.parquet'))], ignore_index=True)
    write_frame(a.out/'peers_help.parquet', d)
    (a.out/'room_host.safetensors').write_bytes((a.work/'room_host.safetensors').read_bytes())
    for name in [n for n in SCHEMES if n.startswith('SynthID') and any(a.work.glob(f'g_{n}_*.npz'))]:
        said, doc, g = [], [], []
        for f in sorted(a.work.glob(f'g_{name}_*.npz')):
            z = np.load(f)
            said.append(json.loads(str(z['said'])) | dict(positions=len(z['doc'])))
            doc.append(z['doc'])
            g.append(z['g'])
        np.savez_compressed(a.out/f'g_{name.lower().replace(" ", "")}.npz', doc=np.concatenate(doc), g=np.concatenate(g), said=json.dumps(said))
    rows = [dict(scheme=f.stem.split('_')[1], seed=int(f.stem.split('_')[2]), kind=f.stem.split('_')[3], **r) for f in sorted(a.work.glob('texts_*.jsonl')) for r in read_texts(f)]
    write_texts(a.out/'texts_peers.jsonl.xz', rows)
    seconds = {f.name: float(f.read_text()) for f in sorted((a.work/'done').iterdir())}
    (a.out/'peers_help.json').write_text(json.dumps(dict(command='python nbs/studies/peers_help.py run', settings=known.get('settings', {}) | dict(temperature=T, top_p=TOP_P, eps=EPS, near=NEAR, top=TOP, others=OTHERS),
        schemes=SCHEMES, tau=known['tau'], room=known['room'], units=seconds, bad=sorted(bad(a)), **known['machine']), indent=1) + '\n')
    print(f'{time.time()-a.t0:5.0f} s: {len(d)} rows')
    own = d[d.reader == 'own']
    print(own.assign(hit=own.p_value <= .01).pivot_table(index='scheme', columns=['kind', 'source', 'attack'], values='hit').round(3).to_string())
    e = d[d.log_e.notna()]
    print(e.assign(hit=e.log_e >= np.log(100)).pivot_table(index=['scheme', 'reader'], columns=['kind', 'source', 'attack'], values='hit').round(3).to_string())
    print(e[e.source == 'unmarked'].assign(e=np.exp(e.log_e.clip(upper=50))).groupby(['scheme', 'reader', 'kind']).e.mean().round(3).to_string())

# ---------------------------------------------------------------- what needs no host
def answers(a):
    "The answers of contexts_chat.toml, which have three keys and paraphrases, by every reader that asks for no host; and the unmarked ones under the same keys"
    from types import SimpleNamespace
    from dew_nb import load_encoder, load_host
    from dew_nb.evaluation.studies.store import load_results
    a.out.mkdir(parents=True, exist_ok=True)
    host, enc, t, rows = load_host(a.host, 'cpu'), load_encoder(device='cpu'), load_results(a.results).texts, []
    table, special = RoomTable.packaged(TokenUnits(host.tokenizer), 'chat'), special_ids(host.tokenizer)
    for name,(kind,params) in SCHEMES.items():
        source = next((o for o in (f'{name} weighted', name) if o in set(t['source'])), None)
        if source is None: continue
        for seed in SEEDS:
            s = find_scheme(kind)(host, enc, seed, name=name, **params)
            for (of,attack),d in t[(t['seed'] == seed) & t['source'].isin([source, 'none'])].groupby(['source', 'attack'], observed=True):
                d = d.sort_values('i').head(a.answers)
                r = reader_of(SimpleNamespace(scheme=lambda *_: s, table=lambda: (table, None)), name, seed, d['text'].tolist())
                for reader,x in r.read(ids_of(host, r.texts), table, special, 'cpu'):
                    rows.append(pd.DataFrame(dict(i=d['i'].to_numpy(), reader=reader, p_value=x['p_value'])).assign(scheme=name, source='unmarked' if of == 'none' else 'marked', attack=attack, seed=seed))
            print(f'{time.time()-a.t0:5.0f} s: {name}, key {seed}', flush=True)
    d = pd.concat(rows, ignore_index=True)[['scheme', 'reader', 'source', 'attack', 'seed', 'i', 'p_value']]
    write_frame(a.to/'peers_answers.parquet', d[(d['source'] == 'marked') | d['attack'].isin(['none', 'deletion-0.3', 'paraphrase'])].reset_index(drop=True), dict(p_value=4), dict(p_value=[.01, .05]))
    (a.to/'peers_answers.json').write_text(json.dumps(dict(command='python nbs/studies/peers_help.py answers --results results/contexts_chat --out results/peers_help_out', texts='dew_eval nbs/studies/contexts_chat.toml nbs/studies/contexts_rewriting.toml --out results/contexts_chat',
        room=repr(table), schemes=SCHEMES, **machine(host)), indent=1) + '\n')
    print(d.assign(hit=d['p_value'] <= .01).pivot_table(index=['scheme', 'reader'], columns=['source', 'attack'], values='hit', observed=True).round(3).to_string())

def levels(a, keys=range(300, 320), draws=20, name='DEW standard'):
    "The default without the host: unmarked texts under more keys, and marked answers with other words deleted"
    from dew_nb import load_encoder, load_host
    host, texts = load_host(a.host, 'cpu'), {}
    for r in read_texts(a.out/'texts_peers.jsonl.xz'): texts.setdefault((r['scheme'], r['seed'], r['kind']), []).append(r['text'])
    t, meta = load_artefact(a.out/'room_host.safetensors', 'room')
    table, s = RoomTable.from_state(t, meta, TokenUnits(host.tokenizer)), find_scheme(SCHEMES[name][0])(host, load_encoder(device='cpu'), 0, name=name, **SCHEMES[name][1])
    def shares(wm, some): return {r: float(np.mean([x.p_value <= .01 for x in w.detector(reading='raw').detect(some, progress=False)])) for r,w in (('own', wm), ('weights', wm.with_room(table)))}
    deleted = [shares(s.watermark, [delete_words(x, .3, content_seed('draw', j, i) % 2**31) for i,x in enumerate(texts[name, 0, 'answers'])]) for j in range(draws)]
    unmarked = {k: [x for seed in SEEDS for x in texts.get(('none', seed, k), [])] for k in KINDS}
    rows = [dict(key=key, kind=k, texts=len(x), **shares(s.rekey(key).watermark, x)) for key in keys for k,x in unmarked.items()]
    (a.to/'peers_levels.json').write_text(json.dumps(dict(command='python nbs/studies/peers_help.py levels', scheme=name, level=.01, unmarked=rows, deleted=deleted, **machine(host)), indent=1) + '\n')
    print(pd.DataFrame(rows).groupby('kind')[['own', 'weights']].mean().round(4).to_string(), pd.DataFrame(deleted).describe().round(3).to_string(), sep='\n')

# ---------------------------------------------------------------- SynthID's Bayesian detector
def bit_sets(path):
    "What a file of bits holds: for each set what was said of it, and a list of (positions, layers) arrays"
    z = np.load(path)
    said, doc, g = json.loads(str(z['said'])), z['doc'], np.unpackbits(z['g'], axis=1)[:, :30]
    cut = np.cumsum([0, *(s['positions'] for s in said)])
    return [(s, np.split(g[i:j], np.searchsorted(doc[i:j], np.arange(1, s['n'])))) for s,i,j in zip(said, cut, cut[1:])]

def padded(texts):
    "(B, L, layers) bits and (B, L) mask"
    x = [torch.as_tensor(t, dtype=torch.float32) for t in texts]
    return pad_sequence(x, batch_first=True), pad_sequence([torch.ones(len(t)) for t in x], batch_first=True)

def log_odds(beta, delta, g):
    "(B, L) log P(bits of a position | marked)/P(bits | unmarked): at each layer two different tokens meet with a probability that the layers before tell"
    two = torch.sigmoid(g @ torch.tril(delta, -1).T + beta)
    return torch.log1p((g - .5)*two).sum(-1)

def tpr_of(score, label, fpr=.01):
    "TPR at the threshold that so few unmarked texts pass"
    return float((score[label == 1] > score[label == 0].quantile(1 - fpr)).float().mean())

def train_bayes(train, val, l2, epochs=50, lr=2.1e-2, size=64, seed=0):
    "The authors' recipe: Adam on the cross-entropy of the posterior, an L2 penalty on delta, the epoch that is best on validation texts"
    gen = torch.Generator().manual_seed(seed)
    beta, delta, prior = -2.5 + .001*torch.randn(30, generator=gen), .001*torch.randn(30, 30, generator=gen), torch.tensor(.5)
    params = [p.requires_grad_() for p in (beta, delta, prior)]
    opt, (g, mask, label), best = torch.optim.Adam(params, lr), train, (2., None)
    for _ in range(epochs):
        for i in torch.randperm(len(label), generator=gen).split(size):
            p = prior.clamp(1e-5, 1 - 1e-5)
            post = torch.sigmoid((log_odds(beta, delta, g[i])*mask[i]).sum(1) + torch.log(p/(1-p)))
            loss = torch.nn.functional.binary_cross_entropy(post.clamp(1e-5, 1 - 1e-5), label[i]) + l2/(len(label)/size)*(delta**2).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad(): lost = 1 - tpr_of((log_odds(beta, delta, val[0])*val[1]).sum(1), val[2])
        if lost < best[0]: best = lost, (beta.detach().clone(), delta.detach().clone())
    return best

def bayes(a, negative=100, share=.3):
    "Train and read: peers_bayes.parquet"
    rows, about = [], {}
    for f in sorted(a.out.glob('g_synthid*.npz')):
        sets, parts = bit_sets(f), dict(train=([], []), val=([], []))
        for said,texts in sets:
            if not said['source'].startswith('train'): continue
            for i,t in enumerate(texts):                                # a prompt is in one part only
                part = 'val' if 7*i % 10 < 10*share else 'train'
                marked = said['source'] == 'train marked'
                parts[part][0].append(t if marked or part == 'val' else t[:negative])
                parts[part][1].append(float(marked))
        data = {k: (*padded(x), torch.tensor(y)) for k,(x,y) in parts.items()}
        tried = {float(l2): train_bayes(data['train'], data['val'], l2) for l2 in np.logspace(-3, -2, 4)}
        l2 = min(tried, key=lambda k: tried[k][0])
        beta, delta = tried[l2][1]
        fair = torch.randint(0, 2, (1 << 18, 30), generator=torch.Generator().manual_seed(0)).float()
        null = log_odds(beta, delta, fair).double()                     # of a position without a mark
        about[sets[0][0]['scheme']] = dict(l2=l2, lost={str(k): v[0] for k,v in tried.items()}, mean=float(null.mean()), sd=float(null.std()), e=float(null.exp().mean()))
        for said,texts in sets:
            if said['source'].startswith('train'): continue
            g, mask = padded(texts)
            s, n = (log_odds(beta, delta, g).double()*mask).sum(1).numpy(), mask.sum(1).numpy()
            z = (s - n*float(null.mean()))/(float(null.std())*np.sqrt(np.maximum(n, 1)))
            rows.append(pd.DataFrame(dict(i=np.arange(len(n)), reader='bayes', z=z, p_value=np.where(n > 0, stats.norm.sf(z), 1.), n=n, log_e=s)).assign(**{k: said[k] for k in ('scheme', 'kind', 'source', 'attack', 'key', 'seed')}))
    write_frame(a.out/'peers_bayes.parquet', pd.concat(rows, ignore_index=True))
    (a.out/'peers_bayes.json').write_text(json.dumps(dict(epochs=50, lr=2.1e-2, batch=64, negative=negative, validation=share, trained=about, seconds=round(time.time()-a.t0, 1)), indent=1) + '\n')
    print(json.dumps(about, indent=1))

def pack(a):
    "What the page reads: one number a reading, and two texts of each unit"
    d = pd.concat([pd.read_parquet(a.out/f) for f in ('peers_help.parquet', 'peers_bayes.parquet') if (a.out/f).exists()], ignore_index=True)
    d = d[['scheme', 'reader', 'source', 'kind', 'attack', 'key', 'seed', 'i', 'p_value', 'log_e']].sort_values(['scheme', 'reader', 'source', 'kind', 'attack', 'key', 'seed', 'i'])
    write_frame(a.to/'peers_help.parquet', d, dict(p_value=12, log_e=12), dict(log_e=[float(np.log(x)) for x in (20, 100)]))
    said = json.loads((a.out/'peers_help.json').read_text())
    units = said.pop('units')
    said['seconds'] = round(sum(units.values()))                       # of all processes
    if (a.out/'peers_bayes.json').exists(): said['bayes'] = json.loads((a.out/'peers_bayes.json').read_text())
    (a.to/'peers_help.json').write_text(json.dumps(said, indent=1) + '\n')
    write_texts(a.to/'peers_help_texts.jsonl.xz', [r for r in read_texts(a.out/'texts_peers.jsonl.xz') if r['i'] < 2])
    print({f.name: f.stat().st_size for f in sorted(a.to.glob('peers_help*'))})

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('command', choices=['run', 'collect', 'bayes', 'answers', 'levels', 'pack'])
    ap.add_argument('--host', default='qwen2.5-coder-1.5b-instruct', help='an asset')
    ap.add_argument('--answers', type=int, default=300, help='prompts')
    ap.add_argument('--programs', type=int, default=100, help='prompts')
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--extra', type=int, default=10, help='more keys that unmarked texts are read under')
    ap.add_argument('--batch', type=int, default=300, help='texts written at a time')
    ap.add_argument('--device')
    ap.add_argument('--until', type=float, default=1e9, help='seconds after which no unit is begun')
    ap.add_argument('--worker', type=int, default=0, help='number of this process among several')
    ap.add_argument('--work', type=Path, help='where texts and finished parts are kept')
    ap.add_argument('--results', type=Path, help='folder of dew_eval, for `answers`')
    ap.add_argument('--out', type=Path, required=True)
    ap.add_argument('--to', type=Path, default=Path(__file__).parent/'data', help='where `pack` writes')
    return ap.parse_args()

def main():
    a = arguments()
    a.t0 = time.time()
    dict(run=run, collect=collect, bayes=bayes, answers=answers, levels=levels, pack=pack)[a.command](a)

if __name__ == '__main__': main()
