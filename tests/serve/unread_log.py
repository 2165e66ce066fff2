#!/usr/bin/env python3
"""A server whose log nobody reads keeps answering and ends on SIGTERM. usage: unread_log.py FATHOM MODEL"""
import http.client
import os
import re
import signal
import subprocess
import sys

REQUESTS = 1500  # lines of more than 100 bytes: more than a pipe takes


def main(fathom, model):
    server = subprocess.Popen([fathom, 'serve', model, '--port', '0', '--log-level', 'debug', '--log-format', 'json'],
                              stderr=subprocess.PIPE)
    try:
        text = b''
        while not (url := re.search(rb'"url":"http://127\.0\.0\.1:(\d+)"', text)):
            more = os.read(server.stderr.fileno(), 4096)
            if not more:
                sys.exit(f'the server did not start: {text.decode()}')
            text += more
        connection = http.client.HTTPConnection('127.0.0.1', int(url.group(1)), timeout=30)
        for _ in range(REQUESTS):  # from here on nobody reads
            connection.request('GET', '/v1/models?' + 'x' * 80)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0, server.returncode
        os.set_blocking(server.stderr.fileno(), False)
        lines = server.stderr.read()
        assert len(lines) > 32768, f'the pipe was never full: {len(lines)} bytes'
    finally:
        server.kill()
    print(f'ok: {REQUESTS} answers, {len(lines)} bytes of log that nobody had read')


main(*sys.argv[1:])
