#!/bin/sh
# Reads a repository whose pack is mapped: `git_pack_work.sh FOLDER`, from FOLDER/repo. Every object, in the
# order of the names and in that of the pack, and the pack as a whole.
set -e
cd "$1/repo"
git cat-file --batch-all-objects --batch | sha256sum
git cat-file --batch-all-objects --unordered --batch | sha256sum
git -c pack.threads=1 index-pack --verify objects/pack/*.pack
git -c pack.threads=1 fsck --full 2>&1 | sha256sum
git archive main | sha256sum
