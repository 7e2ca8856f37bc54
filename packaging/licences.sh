#!/bin/sh
# Prints the licences of everything that is linked into the binary and the library, each text once, below the
# names of those that have it.
set -eu
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cargo metadata --locked --format-version 1 --filter-platform "$host" |
    grep -o '"manifest_path":"[^"]*"' | sed 's/.*:"//; s|Cargo.toml"$||' >"$folder/paths"
cargo tree --locked -p weir-cli -p weir-preload -p weir-c -e normal,no-proc-macro --prefix none -f '{p}' |
    awk '$3 !~ /^\(\// && NF { sub(/^v/, "", $2); print $1, $2 }' | LC_ALL=C sort -u >"$folder/crates"

while read -r name version; do
    # With its version as cargo unpacks it, without as `cargo vendor` may have put it.
    path=$(grep -F "/$name-$version/" "$folder/paths" || grep -F "/$name/" "$folder/paths")
    # Of the crate itself, and of the C code that it brings along, up to two folders below.
    texts=$(find "$path" -maxdepth 3 -type f \
        \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | LC_ALL=C sort)
    [ -n "$texts" ] || echo "$name $version: no text of a licence in its sources" >>"$folder/without"
    echo "$texts" | while read -r text; do
        [ -n "$text" ] || continue
        sum=$(sha256sum <"$text" | cut -d' ' -f1)
        [ -e "$folder/$sum" ] || { cp "$text" "$folder/$sum"; echo "$sum" >>"$folder/order"; }
        echo "$name $version: ${text#"$path"}" >>"$folder/$sum.of"
    done
done <"$folder/crates"

echo "Weir's binary and library contain the crates below, and Rust's standard library (MIT or Apache-2.0,"
echo "https://www.rust-lang.org). Each text stands below the names of those that come with it."
[ ! -e "$folder/without" ] || cat "$folder/without"
while read -r sum; do
    printf '\n%s\n' ------------------------------------------------------------------------
    cat "$folder/$sum.of"
    echo
    cat "$folder/$sum"
done <"$folder/order"
