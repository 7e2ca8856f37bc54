#!/bin/sh
# Makes a Python wheel of the release build, in the folder OUT: the command is among the scripts of an
# environment, library and manual pages lie beside. BUILD is the folder of the build, PYTHON an interpreter
# with pip.
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh
DESTDIR=$tree/files PREFIX=/ packaging/install.sh install
cp -R packaging/python/. README.md Cargo.toml LICENSE-MIT LICENSE-APACHE "$tree"
# For `import weir`; the rest of what C programs need is no part of an environment.
mv "$tree/files/lib/libweir.so.0" "$tree/weir/libweir.so"
rm -r "$tree/files/include" "$tree/files/lib/pkgconfig" "$tree"/files/lib/libweir.*
# pip refuses the wheel where glibc is older.
WEIR_WHEEL_TAG=py3-none-manylinux_$(echo "$glibc" | tr . _)_$(uname -m)
export WEIR_WHEEL_TAG
"${PYTHON:-python3}" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$OUT" "$tree"
echo "$OUT/weir-$version-$WEIR_WHEEL_TAG.whl"
