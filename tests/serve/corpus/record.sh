#!/bin/sh
# Records the answers to all requests in this folder anew and shows what changed. A new exchange needs its name and its
# request; the answer is filled in.
# usage: record.sh TEST_SERVE
set -eu
here=$(cd "$(dirname "$0")" && pwd)
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp "$here"/*.json "$before"
CORPUS_WRITE=$here "$1" --gtest_brief=1 --gtest_filter='*Corpus*'
diff -u --exclude=record.sh "$before" "$here" && echo "nothing changed"
