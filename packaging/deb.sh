#!/bin/sh
# Makes a Debian package of the release build, in the folder OUT: what `make install` installs, with the
# documents that Debian wants. BUILD is the folder of the build. The maintainer: DEBFULLNAME and DEBEMAIL.
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-Weir} <${DEBEMAIL:-weir@example.org}>"
doc=$tree/usr/share/doc/weir

DESTDIR=$tree PREFIX=/usr ZSH=zsh/vendor-completions packaging/install.sh install
gzip -9n "$tree"/usr/share/man/man1/*.1 "$doc/third-party-licences.txt"
mv "$doc/CHANGELOG.md" "$doc/changelog"
cat >"$doc/copyright" <<END
Weir, under the MIT licence (below) or the Apache License 2.0 (/usr/share/common-licenses/Apache-2.0), at your
choice. What is linked into it has licences of its own: third-party-licences.txt.gz, in this folder.

$(cat LICENSE-MIT)
END
rm "$doc/LICENSE-MIT" "$doc/LICENSE-APACHE"
cat >"$doc/changelog.Debian" <<END
weir ($version-1) unstable; urgency=medium

  * See changelog.gz.

 -- $maintainer  $(date -Ru -d "@$SOURCE_DATE_EPOCH")
END
gzip -9n "$doc/changelog" "$doc/changelog.Debian"

mkdir "$tree/DEBIAN"
(cd "$tree" && find usr -type f | sort | xargs md5sum) >"$tree/DEBIAN/md5sums"
cat >"$tree/DEBIAN/control" <<END
Package: weir
Version: $version-1
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -ks "$tree/usr" | cut -f1)
Depends: libc6 (>= $glibc), libgcc-s1
Section: utils
Priority: optional
Description: run programs that need more memory than they may have
 Weir runs an unmodified program within a budget of RAM. What the program does
 not use at the moment is kept compressed, within the same budget, and then in
 an encrypted swap file of its own. It works without root, without a kernel
 module and without swap of the kernel's, in containers too.
END
# The same bytes from the same files, whenever and wherever.
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz --build "$tree" "$OUT/weir_$version-1_$architecture.deb"
