#!/usr/bin/env python3
"""Whether `fathom bench` and SGLang's bench_serving measure the same on one server: both in one run, in turn.

usage: against_sglang.py FATHOM_BINARY [--concurrency 4,16] [--rounds 5] [--input 64] [--output 256] [--paced MS] [--json FILE]

Starts `fathom serve models/fairy` on one processor with one thread; the client under test runs on another one, so that a
client's own cost does not change the server. With --paced MS the server is a stand-in that sends a token of each stream every MS
milliseconds: it computes nothing, so that the clients are compared even on a machine that is busy. Both use the streamed completions API with random words, the same lengths,
the same number of requests and outputs of exactly their length (bench_serving by its backend vllm: that of sglang counts a question to the
server behind the last answer as time of the benchmark). Compared are the medians over the rounds of what both
print: output tokens a second of the whole run, median time to first token, between tokens, and per output token.

Needs the package sglang to be installed in the Python that runs this (its torch is not needed: `pip install --no-deps sglang`
and aiohttp, msgspec, numpy, orjson, pybase64, pillow, requests, tqdm, transformers, datasets). Exit status: 0 all within 3 %, 1 not,
77 it is not installed.
"""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, 'models', 'fairy')
LIMIT = 0.03
NUMBERS = [('output tokens/s', 'whole_run_output_tokens_per_second', 'output_throughput', 1),
           ('TTFT median ms', 'ttft', 'median_ttft_ms', 1e3), ('ITL median ms', 'itl', 'median_itl_ms', 1e3),
           ('TPOT median ms', 'tpot', 'median_tpot_ms', 1e3)]


def child(arguments):
    """Runs SGLang's own command line without importing the engine: its package's __init__ wants torch, its client does not."""
    spec = importlib.util.find_spec('sglang')
    package = types.ModuleType('sglang')
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = importlib.machinery.ModuleSpec('sglang', None, is_package=True)
    sys.modules['sglang'] = package
    for name, values in {'sglang.srt': {}, 'sglang.srt.utils': {}, 'sglang.srt.disaggregation': {},
                         'sglang.srt.disaggregation.utils': {'FAKE_BOOTSTRAP_HOST': '2.2.2.2'},
                         'sglang.srt.utils.network': {'resolve_base_url': lambda url, host, port: url or f'http://{host}:{port}',
                                                      'resolve_host_port': lambda url, host, port: url or f'{host}:{port}'}}.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(values)
        sys.modules[name] = module
    from sglang.benchmark.serving import cli_main
    sys.argv = ['bench_serving'] + arguments
    cli_main()


def paced_server(pace):
    """Answers completions with single words at fixed times, as an engine of constant step time would."""
    import asyncio

    from aiohttp import web

    async def models(_):
        return web.json_response({'object': 'list', 'data': [{'id': 'fairy', 'object': 'model'}]})

    async def completions(request):
        body = await request.json()
        count = body['max_tokens']
        response = web.StreamResponse(headers={'Content-Type': 'text/event-stream'})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        start = loop.time() + 4 * pace
        for i in range(count):
            await asyncio.sleep(max(0, start + i * pace - loop.time()))
            choice = {'index': 0, 'text': ' word', 'finish_reason': 'length' if i + 1 == count else None}
            await response.write(b'data: ' + json.dumps({'id': 'x', 'object': 'text_completion', 'choices': [choice]}).encode() + b'\n\n')
        usage = {'prompt_tokens': 64, 'completion_tokens': count, 'total_tokens': 64 + count}
        if body.get('stream_options', {}).get('include_usage'):
            await response.write(b'data: ' + json.dumps({'id': 'x', 'choices': [], 'usage': usage}).encode() + b'\n\n')
        await response.write(b'data: [DONE]\n\n')
        return response

    async def main():
        application = web.Application()
        application.add_routes([web.get('/v1/models', models), web.post('/v1/completions', completions)])
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, '127.0.0.1', 0)
        await site.start()
        print(f'http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}', flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


def on(processor, command):
    return ['taskset', '-c', str(processor)] + command


def run(command, **keywords):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords)
    if done.returncode != 0:
        sys.exit(f'{" ".join(command)}\nended with status {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}')
    return done.stdout


def fathom(binary, url, level, requests, o, folder):
    file = os.path.join(folder, 'fathom.json')
    run(on(1, [binary, 'bench', url, '--api', 'completions', '--content', 'random', '--concurrency', str(level), '--requests', str(requests),
               '--input', str(o.input), '--output', str(o.output), '--json', file]))
    result = json.load(open(file))['levels'][0]
    if result['errors']:
        sys.exit(f'fathom bench: {result["errors"]} errors, e.g. {result["error_examples"][0]}')
    return {name: result[own] if own in result else result['seconds'][own]['p50'] * factor for name, own, _, factor in NUMBERS}


def sglang(url, level, requests, o, folder, tokenizer):
    file = os.path.join(folder, 'sglang.jsonl')
    if os.path.exists(file):
        os.remove(file)
    run(on(1, [sys.executable, os.path.abspath(__file__), '--child', '--backend', 'vllm', '--base-url', url, '--model', 'fairy',
               '--tokenizer', tokenizer, '--dataset-name', 'random-ids', '--random-input-len', str(o.input), '--random-output-len', str(o.output),
               '--random-range-ratio', '1', '--num-prompts', str(requests), '--max-concurrency', str(level), '--warmup-requests', str(level),
               '--output-file', file, '--disable-tqdm', '--seed', str(int(time.time() * 1000) % 2**31)]),
        env={**os.environ, 'HF_HUB_OFFLINE': '1', 'TRANSFORMERS_VERBOSITY': 'error'})
    result = json.loads(open(file).read().splitlines()[-1])
    if result['completed'] != requests:
        sys.exit(f'bench_serving: {result["completed"]} of {requests} requests were answered')
    return {name: result[theirs] for name, _, theirs, _ in NUMBERS}


def serve(binary, folder, pace):
    log = os.path.join(folder, 'server.log')
    command = [sys.executable, os.path.abspath(__file__), '--server', str(pace * 1e-3)] if pace else [binary, 'serve', MODEL, '--port', '0', '--threads', '1']
    server = subprocess.Popen(on(0, command), stdout=open(log, 'w'), stderr=subprocess.STDOUT)
    for _ in range(300):
        if found := re.search(r'http://127\.0\.0\.1:\d+', open(log).read()):
            return server, found.group(0)
        time.sleep(0.1)
    server.kill()
    sys.exit('the server did not start: ' + open(log).read()[-500:])


def tokenizer_folder(folder):
    """The model's tokenizer alone: its config.json names an architecture that transformers may not know."""
    path = os.path.join(folder, 'tokenizer')
    os.makedirs(path)
    os.symlink(os.path.join(MODEL, 'tokenizer.json'), os.path.join(path, 'tokenizer.json'))
    json.dump({'tokenizer_class': 'PreTrainedTokenizerFast'}, open(os.path.join(path, 'tokenizer_config.json'), 'w'))
    return path


def main():
    if sys.argv[1:2] == ['--child']:
        return child(sys.argv[2:])
    if sys.argv[1:2] == ['--server']:
        return paced_server(float(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('fathom')
    parser.add_argument('--concurrency', default='4,16')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--input', type=int, default=64)
    parser.add_argument('--output', type=int, default=256)
    parser.add_argument('--paced', type=float, default=0)
    parser.add_argument('--json')
    o = parser.parse_args()
    if importlib.util.find_spec('sglang') is None:
        print('SKIPPED: sglang is not installed in this Python')
        return 77
    with tempfile.TemporaryDirectory() as folder:
        return compare(o, folder)


def compare(o, folder):
    tokenizer = tokenizer_folder(folder)
    server, url = serve(o.fathom, folder, o.paced)
    results, worst = [], 0
    try:
        for level in map(int, o.concurrency.split(',')):
            requests = max(32, level * 4)
            both = {'fathom': [], 'sglang': []}
            for i in range(o.rounds):
                for name in (('fathom', 'sglang') if i % 2 == 0 else ('sglang', 'fathom')):
                    both[name].append(fathom(o.fathom, url, level, requests, o, folder) if name == 'fathom' else
                                      sglang(url, level, requests, o, folder, tokenizer))
                print(f'concurrency {level}, round {i + 1}: ' + ', '.join(
                    f'{name} {both[name][-1]["output tokens/s"]:.1f}' for name in both) + ' output tokens/s', flush=True)
            for name, *_ in NUMBERS:
                ours, theirs = (statistics.median(r[name] for r in both[who]) for who in ('fathom', 'sglang'))
                difference = ours / theirs - 1
                results.append({'concurrency': level, 'what': name, 'fathom': ours, 'sglang': theirs, 'difference': difference,
                                'rounds': {who: [r[name] for r in both[who]] for who in both}})
                if name == 'output tokens/s':
                    worst = max(worst, abs(difference))
    finally:
        server.terminate()
        server.wait()
    print(f'\n{"open":>5} {"":<16} {"fathom bench":>13} {"bench_serving":>14} {"difference":>11}')
    for r in results:
        print(f'{r["concurrency"]:>5} {r["what"]:<16} {r["fathom"]:>13.2f} {r["sglang"]:>14.2f} {100 * r["difference"]:>9.1f} %')
    if o.json:
        json.dump(results, open(o.json, 'w'), indent=1)
    print(f'output tokens/s differ by at most {100 * worst:.1f} %; {100 * LIMIT:.0f} % are allowed')
    return 0 if worst <= LIMIT else 1


if __name__ == '__main__':
    sys.exit(main())
