#!/usr/bin/env python3
"""How many times as fast as tests/reference/ref.py fathom prefills and decodes the in-box model: both in one run, in turn,
on the same processors.

usage: against_reference.py FATHOM_BINARY [ROUNDS]        needs numpy

Prints each round and the median ratios, then the peak resident memory of a short run beside the size of the model. A ratio says something only on a machine that is otherwise idle.
"""
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, 'models', 'fairy')
sys.path.insert(0, os.path.join(ROOT, 'tests', 'reference'))
import ref  # noqa: E402

PROMPT, DECODE, REF_DECODE = 1500, 256, 40


def fathom(binary, prompt_text, tokens):
    out = subprocess.run([binary, 'run', MODEL, '-', '-n', str(tokens), '--ignore-eos', '--temperature', '0', '--json', '-q',
                          '--chunk', '2048'], input=prompt_text.encode(), stdout=subprocess.PIPE, check=True).stdout
    return json.loads(out)


def peak_memory(binary):
    """Peak resident bytes of a run of 512 tokens, read while it runs: a child's ru_maxrss would start at this process's."""
    child = subprocess.Popen([binary, 'run', MODEL, 'Once upon a time', '-n', '512', '--ignore-eos', '-q'], stdout=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        try:
            with open(f'/proc/{child.pid}/status') as status:
                peak = max([peak] + [int(line.split()[1]) * 1024 for line in status if line.startswith('VmHWM')])
        except OSError:
            pass
        time.sleep(0.01)
    if child.returncode != 0:
        sys.exit(f'fathom ended with status {child.returncode}')
    return peak


def main(binary, rounds=3):
    ids = json.load(open(os.path.join(ROOT, 'tests', 'golden', 'prompts.json')))['passage1500'][:PROMPT]
    text = ref.Tokenizer(os.path.join(MODEL, 'tokenizer.json')).decode(ids[1:])
    model = ref.Model(MODEL)
    prefill, decode = [], []
    for i in range(rounds):
        start = time.time()
        _, state, _ = model.prefill(ids)
        ref_prefill = len(ids) / (time.time() - start)
        start = time.time()
        for token in ids[:REF_DECODE]:
            model.decode(token, state)
        ref_decode = REF_DECODE / (time.time() - start)

        run = fathom(binary, text, DECODE)
        timing, prompt_tokens = run['timing'], run['usage']['prompt_tokens']
        prefill.append(timing['prefill_tokens_per_second'] / ref_prefill)
        decode.append(timing['decode_tokens_per_second'] / ref_decode)
        gigabytes = timing['decode_bytes_per_token'] * timing['decode_tokens_per_second'] / 1e9
        print(f"round {i + 1}: prefill of {prompt_tokens} tokens {timing['prefill_tokens_per_second']:.0f} against {ref_prefill:.0f} tokens/s, "
              f"{prefill[-1]:.1f} times; decode {timing['decode_tokens_per_second']:.0f} against {ref_decode:.1f} tokens/s, {decode[-1]:.1f} times; "
              f"{timing['decode_bytes_per_token'] / 2**20:.1f} MiB touched a token, {gigabytes:.1f} GB/s; load {timing['load_seconds']:.2f} s", flush=True)
    print(f'median: prefill {statistics.median(prefill):.1f} times, decode {statistics.median(decode):.1f} times as fast as ref.py')
    tensors = json.load(open(os.path.join(MODEL, 'model.safetensors.index.json')))['metadata']['total_size']
    peak = peak_memory(binary)
    print(f'peak resident memory of a short run: {peak / 2**20:.1f} MiB, {peak / tensors:.2f} times the {tensors / 2**20:.1f} MiB of tensors')


if __name__ == '__main__':
    main(sys.argv[1], *(int(a) for a in sys.argv[2:3]))
