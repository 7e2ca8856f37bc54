#!/bin/sh
# Makes the packages of the last commit twice, each time from nothing and in another folder, and compares
# them. Then lintian looks at the Debian package, and apt installs it in a clean Debian, where it runs and is
# removed. For releases: two cold builds take their time. Needs root, lintian and mmdebstrap.
set -eu
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
folder=$(mktemp -d -p /var/tmp weir-distcheck-XXXXXX)
trap 'rm -rf "$folder"' EXIT
for place in one another/deeper; do
    mkdir -p "$folder/$place"
    git archive HEAD | tar x -C "$folder/$place"
    OUT=$folder/$place/out "$folder/$place/packaging/dist.sh"
    (cd "$folder/$place/out" && sha256sum -- *) >"$folder/$(basename "$place").sums"
done
cat "$folder/one.sums"
cmp "$folder/one.sums" "$folder/deeper.sums"
package=$(echo "$folder"/one/out/*.deb)
lintian --allow-root --fail-on error "$package"

# What is on the disk, but for what dpkg and apt write about themselves.
theirs='.*/var/(lib/dpkg|lib/apt|log|cache)/.*'
list="find \"\$1\" -xdev -regextype posix-extended -not -regex '$theirs' | sort"
. /etc/os-release
cp "$package" "$folder/weir.deb"
# shellcheck disable=SC2016
mmdebstrap --quiet --mode=root --variant=apt --format=null \
    --customize-hook="copy-in '$folder/weir.deb' /root" \
    --customize-hook="$list >'$folder/before'" \
    --customize-hook='chroot "$1" apt-get install --yes /root/weir.deb' \
    --customize-hook='chroot --userspec=nobody:nogroup "$1" weir demo' \
    --customize-hook='chroot "$1" apt-get purge --yes weir' \
    --customize-hook="$list >'$folder/after'" \
    "$VERSION_CODENAME" - \
    $(find /etc/apt -maxdepth 2 -size +0 \( -name '*.list' -o -name '*.sources' \))
diff "$folder/before" "$folder/after"
echo "distcheck: the packages are the same twice, and the Debian package comes and goes"
