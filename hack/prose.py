#!/usr/bin/env python3
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws random comments, messages and sentences of documents for an editor to read: hack/prose.py [SEED] [COUNT]."""
import random, re, subprocess, sys

seed, count = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(10**6), int(sys.argv[2]) if len(sys.argv) > 2 else 60


def files(*patterns):
    return subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True).stdout.split()


def comments():
    for path in files("*.go"):
        if "zz_generated" in path or "applyconfiguration" in path:
            continue
        block, start = [], 0
        for number, line in enumerate(open(path), 1):
            text = re.match(r"\s*// ?(.*)", line)
            if text and not re.match(r"(nolint|\+|go:|Copyright|SPDX)", text[1]):
                start = start if block else number
                block.append(text[1])
                continue
            if len(" ".join(block).split()) >= 5:
                yield f"{path}:{start}", " ".join(block)
            block = []


def messages():
    for path in files("*.go"):
        if path.endswith("_test.go") or path.startswith("test/"):
            continue
        for number, line in enumerate(open(path), 1):
            if line.lstrip().startswith("//"):
                continue
            for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
                if len(re.findall(r"[A-Za-z]+ ", text)) >= 4:
                    yield f"{path}:{number}", text


def sentences():
    for path in files("*.md"):
        if path.startswith("docs/reference/"):
            continue
        code = False
        for number, line in enumerate(open(path), 1):
            code ^= line.startswith("```")
            if code or line.startswith(("```", "#", "|--")):
                continue
            for text in re.split(r"(?<=[.!?]) (?=[A-Z`*])|\|", line.strip("-* \n")):
                if len(text.split()) >= 6:
                    yield f"{path}:{number}", text.strip()


print("seed", seed)
for title, drawn in (("comments", comments()), ("messages", messages()), ("sentences", sentences())):
    drawn = list(drawn)
    print(f"\n## {title}: {count} of {len(drawn)}")
    for place, text in sorted(random.Random(seed).sample(drawn, count)):
        print(f"{place}: {text}")
