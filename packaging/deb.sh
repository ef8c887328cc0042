#!/usr/bin/env bash
# Makes a Debian package of binaries that were built before.
#
#   packaging/deb.sh BINARIES OUTPUT      BINARIES holds inco, and static inco-nf and inco-actors; OUTPUT gets inco_VERSION_ARCH.deb
#
# Needs dpkg-dev (dpkg-shlibdeps finds the libraries that inco needs, by the packages that they came from).
set -euo pipefail
[ $# = 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
binaries=$(cd "$1" && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
for program in inco inco-nf inco-actors; do
    [ -x "$binaries/$program" ] || { echo "deb: there is no $binaries/$program; \`make build\` makes it" >&2; exit 1; }
done
command -v dpkg-shlibdeps >/dev/null || { echo 'deb: dpkg-shlibdeps is missing: apt-get install dpkg-dev' >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
# dpkg sorts 0.2.0~dev before 0.2.0. To it, 0.2.0-dev would be the later one.
version=$("$binaries/inco" --version | awk '{ print $2 }' | tr - '~')
architecture=$(dpkg --print-architecture)

install -D -m 755 "$binaries/inco" "$tree/usr/bin/inco"
install -D -m 755 "$binaries/inco-nf" "$tree/usr/bin/inco-nf"
install -D -m 755 "$binaries/inco-actors" "$tree/usr/bin/inco-actors"
strip --strip-unneeded "$tree/usr/bin/inco" "$tree/usr/bin/inco-nf" "$tree/usr/bin/inco-actors"
install -D -m 644 "$root/deploy/systemd/inco.service" "$tree/usr/lib/systemd/system/inco.service"
install -d "$tree/usr/share/man/man1"
"$binaries/inco" man "$tree/usr/share/man/man1"
gzip -9n "$tree"/usr/share/man/man1/*.1
completions() { # shell, file
    install -d "$(dirname "$tree/$2")"
    "$binaries/inco" completions "$1" >"$tree/$2"
}
completions bash usr/share/bash-completion/completions/inco
completions zsh usr/share/zsh/vendor-completions/_inco
completions fish usr/share/fish/vendor_completions.d/inco.fish
docs=$tree/usr/share/doc/inco
install -d "$docs/examples/profiles"
install -m 644 "$root"/examples/*.toml "$root"/examples/haproxy.cfg "$docs/examples"
install -m 644 "$root"/examples/profiles/*.toml "$docs/examples/profiles"
install -m 644 "$root/README.md" "$root/ARCHITECTURE.md" "$docs"
cp -r "$root/docs" "$docs/docs"
find "$docs/docs" -type d -exec chmod 755 {} + -o -type f -exec chmod 644 {} +
gzip -9nc "$root/CHANGELOG.md" >"$docs/changelog.gz"
printf 'inco\n\nLicence: Apache-2.0, see /usr/share/common-licenses/Apache-2.0.\n' >"$docs/copyright"
# The folder for /etc/inco/inco.toml. The operator writes that file; the package brings none.
install -d -m 755 "$tree/etc/inco"

# dpkg-shlibdeps wants a control file of the sources; its content does not matter.
mkdir "$work/debian"
printf 'Source: inco\n\nPackage: inco\nArchitecture: any\nDescription: x\n' >"$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O "$tree/usr/bin/inco" 2>"$work/shlibdeps.log" | sed -n 's/^shlibs:Depends=//p') || {
    cat "$work/shlibdeps.log" >&2
    exit 1
}
install -d "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: inco
Version: $version
Architecture: $architecture
Maintainer: the inco authors <inco@localhost>
Section: net
Priority: optional
Installed-Size: $(du -sk "$tree" | cut -f1)
Depends: $libraries
Recommends: iproute2
Suggests: docker.io | podman, openvswitch-switch-dpdk
Description: in-network container orchestrator
 inco stands where packets enter a server, gives each new flow to one of N
 containers of a network function, keeps the flow there, counts every packet,
 and adds, removes and parks containers within milliseconds.
CONTROL
for script in postinst prerm postrm; do install -m 755 "$root/packaging/debian/$script" "$tree/DEBIAN/$script"; done
(cd "$tree" && find usr etc -type f -exec md5sum {} + >DEBIAN/md5sums)
dpkg-deb --root-owner-group -z"${INCO_DEB_LEVEL:-6}" --build "$tree" "$output/inco_${version}_$architecture.deb" >/dev/null
echo "built: $output/inco_${version}_$architecture.deb"
