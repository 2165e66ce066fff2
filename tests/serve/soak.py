#!/usr/bin/env python3
"""Random clients against `fathom serve` for a while: good requests, clients that leave, readers that dawdle, garbage.
At the end nothing may be left: no request running or waiting, no page of the cache in use, all tokens accounted for.

usage: soak.py FATHOM MODEL [SECONDS (600)] [CLIENTS (8)] [SEED (0)]     exit status 1 when something is wrong
"""
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

fathom, model = sys.argv[1], sys.argv[2]
duration = float(sys.argv[3]) if len(sys.argv) > 3 else 600
clients = int(sys.argv[4]) if len(sys.argv) > 4 else 8
seed = int(sys.argv[5]) if len(sys.argv) > 5 else 0

server = subprocess.Popen([fathom, "serve", model, "--port", "0", "--max-running", "6", "--max-waiting", "6",
                           "--cache-tokens", "1536", "--chunk", "64", "--chunk-beside-decode", "32", "--log-level", "error"],
                          stderr=subprocess.PIPE, text=True)
banner = server.stderr.readline()
while server.poll() is None and "fathom serves" not in banner:
    banner = server.stderr.readline()
port = int(re.search(r":(\d+)", banner).group(1))
lines = []
threading.Thread(target=lambda: lines.extend(server.stderr), daemon=True).start()

lock = threading.Lock()
counts = {}
problems = []
tokens_seen = 0      # completion tokens that complete answers reported
expected = {}        # (prompt, seed, length) -> text: the same request must give the same text whatever goes on around it


def count(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1


def problem(text):
    with lock:
        problems.append(text)


def connect(small=False):
    s = socket.socket()
    if small:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(60)
    s.connect(("127.0.0.1", port))
    return s


def request(path, body, method="POST"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n").encode() + data


def read_all(s, pause=0.0):
    data = b""
    while True:
        part = s.recv(65536 if not pause else 2048)
        if not part:
            break
        data += part
        if pause:
            time.sleep(pause)
    head, _, rest = data.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            n = int(size, 16)
            if n == 0:
                break
            body, rest = body + rest[:n], rest[n + 2:]
        rest = body
    return (int(head.split()[1]) if head else 0), rest.decode()


def ask(rng, stream, pause=0.0):
    global tokens_seen
    prompt = rng.choice(["Tell me a story", "Who is the king?", "word " * rng.choice([50, 300, 700])])
    key = (prompt, rng.randrange(4), rng.choice([1, 8, 8, 40, 40, 350]))
    body = {"messages": [{"role": "user", "content": prompt}], "seed": key[1], "max_tokens": key[2], "stream": stream,
            "ignore_eos": True, "top_p": 0.9, "user": rng.choice(["", "a", "b", "c"])}
    with connect(pause > 0) as s:
        s.sendall(request("/v1/chat/completions", body))
        status, text = read_all(s, pause)
    count(f"chat {status}")
    if status == 429:
        return time.sleep(0.05)
    if status != 200:
        return problem(f"chat: {status} {text[:200]}")
    if stream:
        events = [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]
        if not text.endswith("data: [DONE]\n\n") or any("error" in e for e in events):
            return problem(f"stream: {text[-300:]}")
        content = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
        finishes = [e for e in events if e["choices"] and e["choices"][0]["finish_reason"]]
        if len(finishes) != 1:
            problem(f"stream with {len(finishes)} ends")
        used = events[-1]["usage"]["completion_tokens"]
    else:
        answer = json.loads(text)
        content, used = answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
    with lock:
        tokens_seen += used
        if expected.setdefault(key, content) != content:
            problems.append(f"another text for {key[0][:30]!r} {key[1:]}: {content!r} instead of {expected[key]!r}")
    if used != key[2]:
        problem(f"{used} tokens instead of {key[2]}")


def other(rng):
    """The other APIs, choices, and outputs that must have a form."""
    global tokens_seen
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    path, body, last = rng.choice([
        ("/v1/messages", {"max_tokens": 12, "messages": [{"role": "user", "content": "Hello"}]}, "event: message_stop"),
        ("/v1/responses", {"max_output_tokens": 12, "input": "Hello"}, ("event: response.incomplete", "event: response.completed")),
        ("/v1/completions", {"max_tokens": 5, "prompt": "word " * rng.choice([1, 300]), "n": 3}, "data: [DONE]"),
        ("/v1/chat/completions", {"max_tokens": 60, "messages": [{"role": "user", "content": "Hello"}],
                                  "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}, "data: [DONE]")])
    stream = rng.random() < 0.5
    with connect() as s:
        s.sendall(request(path, {**body, "stream": stream, "user": rng.choice(["a", "b"])}))
        status, text = read_all(s)
    count(f"other {status}")
    if status == 429:
        return time.sleep(0.05)
    if status != 200:
        return problem(f"{path}: {status} {text[:200]}")
    if stream:
        if not text.strip().split("\n\n")[-1].startswith(last):
            problem(f"{path}: ends with {text[-200:]}")
        return
    answer = json.loads(text)
    usage = answer["usage"]
    with lock:
        tokens_seen += usage.get("completion_tokens", usage.get("output_tokens"))
    if "response_format" in body:
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop" and set(json.loads(choice["message"]["content"])) != {"a"}:
            problem(f"not of the schema: {choice}")


def leave(rng):
    with connect() as s:
        s.sendall(request("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story"}],
                                                   "max_tokens": 1000, "ignore_eos": True, "stream": rng.random() < 0.7}))
        time.sleep(rng.random() * 0.5)
    count("left")


def garbage(rng):
    with connect() as s:
        kind = rng.randrange(4)
        if kind == 0:
            s.sendall(rng.randbytes(rng.randrange(1, 5000)))
        elif kind == 1:
            s.sendall(request("/v1/chat/completions", rng.randbytes(rng.randrange(200))))
        elif kind == 2:
            s.sendall(request("/v1/completions", {"prompt": [rng.choice([1, -1, "x", [], None, 1e9])], "n": rng.choice([1, 0, "a"])}))
        else:
            data = request("/v1/chat/completions", {"messages": []})
            s.sendall(data[:rng.randrange(len(data))])
        s.shutdown(socket.SHUT_WR)
        try:
            s.recv(65536)
        except OSError:
            pass
    count("garbage")


def client(number):
    rng = random.Random(seed * 1000 + number)
    while time.monotonic() < end:
        try:
            rng.choices([lambda: ask(rng, True), lambda: ask(rng, False), lambda: ask(rng, True, 0.002),
                         lambda: other(rng), lambda: leave(rng), lambda: garbage(rng)], [4, 3, 1, 3, 3, 2])[0]()
        except Exception as e:  # noqa: BLE001
            problem(f"client {number}: {e!r}")
            if server.poll() is not None:
                return


def metric(text, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(re.escape(name) + r"[ {]", line))


end = time.monotonic() + duration
threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
[t.start() for t in threads]
[t.join() for t in threads]
for _ in range(200):
    with connect() as s:
        s.sendall(request("/metrics", b"", "GET"))
        _, text = read_all(s)
    if metric(text, "vllm:num_requests_running") + metric(text, "vllm:num_requests_waiting") == 0:
        break
    time.sleep(0.1)
for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "fathom_engine_failures_total"):
    if metric(text, name) != 0:
        problem(f"{name} is {metric(text, name)} at the end")
if metric(text, "vllm:generation_tokens_total") < tokens_seen:
    problem(f"clients got {tokens_seen} tokens, the engine counts {metric(text, 'vllm:generation_tokens_total')}")
if server.poll() is not None:
    problem(f"the server ended with {server.returncode}")
server.send_signal(signal.SIGTERM)
if server.wait(60) != 0:
    problem(f"exit status {server.returncode} after SIGTERM")
print(", ".join(f"{what}: {n}" for what, n in sorted(counts.items())), f"; tokens: {tokens_seen};",
      f"preemptions: {metric(text, 'vllm:num_preemptions_total'):.0f};",
      f"cached tokens: {metric(text, 'vllm:prefix_cache_hits_total'):.0f};",
      f"memory: {metric(text, 'process_resident_memory_bytes') / 2**20:.0f} MiB")
for text in problems[:20] + lines[:20]:
    print("PROBLEM", text.strip())
sys.exit(bool(problems or lines))
