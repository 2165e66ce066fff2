#!/usr/bin/env python3
"""Greedy continuations of the golden prompts by ref.py with correctly rounded exp and log1p, and the loss of the longest.

usage: greedy_exact.py MODEL_DIR GOLDENS_DIR     writes GOLDENS_DIR/greedy_exact.json

For each prompt: 64 tokens. `nll_passage1500`: mean negative log likelihood of tokens 1.. of that prompt, in units of 1e-6.

numpy's fp32 exp is up to 2.5 ulp off and differs between processors, and one ulp is enough to change a continuation
after some tens of tokens (README.md, "Which tolerance to use"). Rounded once from fp64, exp and log1p have one right
answer everywhere, so an independent implementation can be compared token by token.
"""
import json
import sys
import types

import numpy as np

import ref as R


def rounded_once(f):
    def g(x, *args, **options):
        if getattr(x, 'dtype', None) == np.float32:
            return np.asarray(f(np.asarray(x, np.float64), *args, **options)).astype(np.float32)[()]
        return f(x, *args, **options)
    return g


class ExactNumpy(types.ModuleType):
    exp = staticmethod(rounded_once(np.exp))
    log1p = staticmethod(rounded_once(np.log1p))

    def __getattr__(self, name):
        return getattr(np, name)


def main(model, goldens):
    R.np = ExactNumpy('numpy')
    m = R.Model(model)
    prompts = json.load(open(goldens + '/prompts.json'))
    out = {name: m.greedy(prompts[name], 64) for name in ('plain', 'chat', 'passage300', 'passage1500')}
    ids = prompts['passage1500']
    logits = m.prefill(ids)[0][:-1].astype(np.float64)
    top = logits.max(-1)
    nll = top + np.log(np.exp(logits - top[:, None]).sum(-1)) - logits[np.arange(len(ids) - 1), ids[1:]]
    out['nll_passage1500'] = [round(float(nll.mean()) * 1e6)]
    with open(goldens + '/greedy_exact.json', 'w') as f:
        json.dump(out, f, separators=(',', ':'))
        f.write('\n')


if __name__ == '__main__':
    main(*sys.argv[1:3])
