#!/usr/bin/env python3
"""The web page of `fathom serve` in headless Chromium, used as a person would: chat, stop, again, live view, profile.

usage: web_browser.py FATHOM MODEL OUT

Anything on the console fails. Screenshots are left in OUT for people to look at. Exit status 77 when there is no Chromium:
nothing was checked.
"""
import base64
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))


class Browser:
    """Chromium by its debugging pipe: messages of JSON, each closed by a zero byte."""

    def __init__(self, program, profile):
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        script = 'exec 3<&%d 4>&%d; exec "$@"' % (read_there, write_there)
        self.process = subprocess.Popen(['sh', '-c', script, 'sh', program, '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars',
                                         f'--user-data-dir={profile}', '--remote-debugging-pipe', 'about:blank'],
                                        pass_fds=(read_there, write_there), stderr=subprocess.DEVNULL)
        os.close(read_there)
        os.close(write_there)
        self.input, self.output, self.pending, self.number = write_here, read_here, b'', 0
        self.console = []
        target = next(t for t in self.call('Target.getTargets')['targetInfos'] if t['type'] == 'page')
        self.session = self.call('Target.attachToTarget', targetId=target['targetId'], flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log'):
            self.call(f'{domain}.enable')

    session = None

    def call(self, method, timeout=90, **parameters):
        self.number += 1
        message = {'id': self.number, 'method': method, 'params': parameters}
        if self.session:
            message['sessionId'] = self.session
        os.write(self.input, json.dumps(message).encode() + b'\0')
        until = time.time() + timeout
        while True:
            answer = self.receive(until, method)
            if answer.get('id') == self.number:
                if 'error' in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer['result']

    def receive(self, until, what):
        while b'\0' not in self.pending:
            if not select.select([self.output], [], [], max(0, until - time.time()))[0]:
                raise TimeoutError(f'the browser did not answer: {what}')
            piece = os.read(self.output, 1 << 20)
            if not piece:
                raise EOFError('the browser has gone')
            self.pending += piece
        text, self.pending = self.pending.split(b'\0', 1)
        message = json.loads(text)
        method, parameters = message.get('method'), message.get('params', {})
        if method == 'Runtime.consoleAPICalled':
            self.console.append(' '.join(str(a.get('value', a.get('description'))) for a in parameters['args']))
        elif method == 'Runtime.exceptionThrown':
            self.console.append(str(parameters['exceptionDetails'].get('exception', {}).get('description', parameters)))
        elif method == 'Log.entryAdded' and parameters['entry']['level'] in ('warning', 'error'):
            # An answer of status 400 or 404 is logged by the browser itself; the page shows it.
            if parameters['entry'].get('source') != 'network':
                self.console.append(parameters['entry']['text'])
        return message

    def look(self, width, height, dark):
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}])

    def open(self, url):
        self.call('Page.navigate', url=url)
        for _ in range(200):
            if self.evaluate('document.readyState') == 'complete':
                return
            time.sleep(0.05)
        raise TimeoutError('the page did not load')

    def evaluate(self, text, timeout=90):
        result = self.call('Runtime.evaluate', timeout, expression=text, awaitPromise=True, returnByValue=True)
        if 'exceptionDetails' in result:
            raise RuntimeError(result['exceptionDetails'].get('exception', {}).get('description', 'error in the page'))
        return result['result'].get('value')

    def picture(self, path):
        with open(path, 'wb') as file:
            file.write(base64.b64decode(self.call('Page.captureScreenshot')['data']))

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def start_server(fathom, model):
    server = subprocess.Popen([fathom, 'serve', model, '--port', '0', '--profile-dir', tempfile.gettempdir()],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in server.stdout:
        found = re.search(r'http://127\.0\.0\.1:(\d+)', line)
        if found:
            threading.Thread(target=lambda: [None for _ in server.stdout], daemon=True).start()
            return server, found.group(0) + '/'
    sys.exit(f'the server did not start (status {server.wait()})')


def main(fathom, model, out):
    program = next((b for b in map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome')) if b), None)
    if not program:
        print('SKIPPED: no chromium on this machine (install the package chromium); nothing was checked')
        return 77
    os.makedirs(out, exist_ok=True)
    check = open(os.path.join(HERE, 'web_browser_check.js')).read()
    server, url = start_server(fathom, model)
    failures = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            with urllib.request.urlopen(url) as page:
                if "default-src 'self'" not in page.headers.get('Content-Security-Policy', ''):
                    failures.append('the page has no content policy')
            browser.look(1280, 900, False)
            browser.open(url)
            failures += browser.evaluate(f'(async () => {{ {check}\n return await useThePage(); }})()')
            for width, name in ((1280, 'desk'), (390, 'phone')):
                for view in ('chat', 'live'):
                    for dark in (False, True):
                        browser.look(width, 1000, dark)
                        browser.open(f'{url}#/{view}')
                        browser.evaluate(f'(async () => {{ {check}\n await showSomething("{view}"); }})()')
                        browser.picture(os.path.join(out, f'{view}_{name}_{"dark" if dark else "light"}.png'))
                        if browser.evaluate('document.documentElement.scrollWidth > innerWidth'):
                            failures.append(f'{view}, {name}: the page scrolls sideways')
            failures += [f'console: {text}' for text in browser.console]
        finally:
            browser.close()
            server.terminate()
            server.wait(timeout=30)
    for failure in failures:
        print('FAILED:', failure)
    print('passed' if not failures else f'{len(failures)} failures', '- screenshots in', out)
    return 1 if failures else 0


if __name__ == '__main__':
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
