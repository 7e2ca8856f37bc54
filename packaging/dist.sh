#!/bin/sh
# Makes the packages for others, in the folder OUT, from a build of its own (target/dist) in which no path of
# this machine is left. So the same sources, compilers and libc give the same bytes in every folder.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)
sources=${CARGO_HOME:-$HOME/.cargo}
rust=$(rustc --print sysroot)
# What comes later wins: the sources of crates may lie below the repository.
RUSTFLAGS="--remap-path-prefix=$here=weir --remap-path-prefix=$sources=cargo --remap-path-prefix=$rust=rust"
CFLAGS="-ffile-prefix-map=$here=weir -ffile-prefix-map=$sources=cargo"
CARGO_TARGET_DIR=$here/target/dist
BUILD=$CARGO_TARGET_DIR/release
export RUSTFLAGS CFLAGS CARGO_TARGET_DIR BUILD
make build deb wheel

for file in "$BUILD/weir" "$BUILD/libweir_preload.so" "$BUILD/libweir_c.so"; do
    if strings "$file" | grep -F -e "$here/" -e "$sources/" -e "$HOME/"; then
        echo "dist.sh: the paths above are in $file" >&2
        exit 1
    fi
done
