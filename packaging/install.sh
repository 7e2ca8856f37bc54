#!/bin/sh
# What `make install` and `make uninstall` do: `install.sh install|uninstall`, with the variables
#   BUILD    folder with the release build
#   PREFIX   where the files will be used
#   DESTDIR  put before PREFIX, for packages: nothing is written outside
#   ZSH      folder of zsh's functions below PREFIX/share; Debian's own packages have another
# The binary finds the library at ../lib/weir, so the tree can be moved as a whole.
set -eu
cd "$(dirname "$0")/.."
: "${BUILD:=target/release}" "${PREFIX:=/usr/local}" "${DESTDIR:=}" "${ZSH:=zsh/site-functions}"
root=$DESTDIR$PREFIX
commands='run demo doctor stat top serve set bench jupyter config completions man'
documents='LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md'
notices=third-party-licences.txt

# Folders that are Weir's alone, and the files in those that are everybody's.
own_folders() {
    printf '%s\n' lib/weir share/doc/weir
}

own_files() {
    printf '%s\n' bin/weir share/man/man1/weir.1
    printf '%s\n' include/weir.h lib/libweir.so lib/libweir.so.0 lib/libweir.a lib/pkgconfig/weir.pc
    printf 'share/man/man1/weir-%s.1\n' $commands
    printf '%s\n' share/bash-completion/completions/weir "share/$ZSH/_weir" \
        share/fish/vendor_completions.d/weir.fish
}

# Writes what a command says to a file.
generate() {
    file=$root/share/$1
    shift
    mkdir -p "$(dirname "$file")"
    "$@" >"$file.new"
    chmod 644 "$file.new"
    mv "$file.new" "$file"
}

# How C programs find the library; it can be moved with the tree.
package_config() {
    cat <<'END'
prefix=${pcfiledir}/../..

Name: weir
Description: Memory larger than RAM within a budget
END
    sed -n 's/^version = "\(.*\)"/Version: \1/p' Cargo.toml | head -n 1
    cat <<'END'
Cflags: -I${prefix}/include
Libs: -L${prefix}/lib -lweir
Libs.private: -lpthread -ldl -lm
END
}

install_all() {
    for file in weir libweir_preload.so libweir_c.so libweir_c.a $notices; do
        [ -e "$BUILD/$file" ] || { echo "install.sh: no $BUILD/$file: first \`make build\`" >&2; exit 1; }
    done
    # By a new name and a rename: programs that run under Weir keep the library that they have.
    for pair in weir:bin/weir:755 libweir_preload.so:lib/weir/libweir_preload.so:644 \
        libweir_c.so:lib/libweir.so.0:644 libweir_c.a:lib/libweir.a:644; do
        from=$BUILD/${pair%%:*} mode=${pair##*:} to=${pair#*:} to=$root/${to%:*}
        install -D -m "$mode" "$from" "$to.new"
        case $to in *.a) strip --strip-debug "$to.new" ;; *) strip "$to.new" ;; esac
        mv "$to.new" "$to"
    done
    ln -sfn libweir.so.0 "$root/lib/libweir.so"
    install -D -m 644 crates/weir-c/include/weir.h "$root/include/weir.h"
    install -d "$root/lib/pkgconfig"
    package_config >"$root/lib/pkgconfig/weir.pc.new"
    chmod 644 "$root/lib/pkgconfig/weir.pc.new"
    mv "$root/lib/pkgconfig/weir.pc.new" "$root/lib/pkgconfig/weir.pc"
    generate man/man1/weir.1 "$BUILD/weir" man
    for command in $commands; do
        generate "man/man1/weir-$command.1" "$BUILD/weir" man "$command"
    done
    generate bash-completion/completions/weir "$BUILD/weir" completions bash
    generate "$ZSH/_weir" "$BUILD/weir" completions zsh
    generate fish/vendor_completions.d/weir.fish "$BUILD/weir" completions fish
    for file in $documents "$BUILD/$notices"; do
        install -D -m 644 "$file" "$root/share/doc/weir/${file##*/}"
    done
    install -d "$root/share/doc/weir/examples"
    install -m 644 packaging/examples/* "$root/share/doc/weir/examples"
}

uninstall_all() {
    own_files | while read -r file; do rm -f "$root/$file"; done
    own_folders | while read -r folder; do rm -rf "${root:?}/$folder"; done
}

case ${1:-} in
install) install_all ;;
uninstall) uninstall_all ;;
*) sed -n '2,7s/^# //p' "$0" >&2; exit 2 ;;
esac
