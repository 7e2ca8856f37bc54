#!/bin/sh
# Packs a fresh copy of a repository again: `git_work.sh FOLDER DEPTH WINDOW OUT`, from FOLDER/repo. One
# thread, so that the pack is the same every time; pack-objects, a child of a child, holds versions of a file
# and their indexes.
set -e
rm -rf "$1/copy"
cp -r "$1/repo" "$1/copy"
git -C "$1/copy" -c pack.threads=1 repack -a -d -f -q --depth="$2" --window="$3"
cat "$1"/copy/objects/pack/*.pack > "$4"
