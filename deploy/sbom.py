#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of an image's root file system, as SPDX 2.3 JSON on standard output.

    deploy/sbom.py ROOTFS

Each file of /opt/refit is listed with its digests and the package it came from: a Debian package with its version, asked
of dpkg by the library's name, or this project. A library that no package owns ends it with an error: a bill that leaves
something out is worse than none.
"""
import datetime
import hashlib
import os
import re
import subprocess
import sys
import uuid

import json

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = re.compile(r"^(bin/|lib/librefit-)")


def project_version():
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"project\(refit VERSION ([0-9.]+)", file.read()).group(1)


def dpkg(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def owner(path):
    """(package, version, architecture, source) of the package that holds this very file, or None. A name alone would not
    do: packages for other architectures hold files of the same names."""
    with open(path, "rb") as file:
        content = file.read()
    for line in dpkg("dpkg-query", "-S", "*/" + os.path.basename(path)).splitlines():
        package, _, where = line.rpartition(": ")
        if package.startswith("diversion") or not os.path.isfile(where):
            continue
        with open(where, "rb") as file:
            if file.read() != content:
                continue
        fields = dpkg("dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\t${source:Package}", package.split(", ")[0])
        return tuple(fields.split("\t"))
    return None


def digest(path, kind):
    with open(path, "rb") as file:
        return hashlib.new(kind, file.read()).hexdigest()


def spdx_id(*parts):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(parts))


def release():
    with open("/etc/os-release", encoding="utf-8") as file:
        fields = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    return fields.get("ID", "debian").strip('"'), fields.get("VERSION_ID", "").strip('"')


def project_package(version):
    return {"name": "refit", "SPDXID": spdx_id("Package", "refit"), "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
            "copyrightText": "NOASSERTION", "primaryPackagePurpose": "APPLICATION"}


def debian_package(found):
    name, version, arch, source = found
    distribution, number = release()
    purl = f"pkg:deb/{distribution}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={arch}&distro={distribution}-{number}"
    return {"name": name, "SPDXID": spdx_id("Package", name), "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION", "sourceInfo": f"built from the source package {source}",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]}


def bill(rootfs):
    base = os.path.join(rootfs, "opt", "refit")
    with open(os.path.join(base, "MANIFEST"), encoding="utf-8") as file:
        names = file.read().split()
    version = project_version()
    packages, files = {"refit": project_package(version)}, []
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", packages["refit"]["SPDXID"])]
    for name in names:
        path = os.path.join(base, name)
        found = None if OURS.match(name) else owner(path)
        if not OURS.match(name) and not found:
            raise SystemExit(f"sbom.py: no Debian package owns {name}")
        package = found[0] if found else "refit"
        if package not in packages:
            packages[package] = debian_package(found)
            relations.append((packages["refit"]["SPDXID"], "DEPENDS_ON", packages[package]["SPDXID"]))
        files.append({"fileName": f"./opt/refit/{name}", "SPDXID": spdx_id("File", name), "licenseConcluded": "NOASSERTION",
                      "copyrightText": "NOASSERTION",
                      "checksums": [{"algorithm": kind.upper(), "checksumValue": digest(path, kind)} for kind in ("sha1", "sha256")]})
        relations.append((packages[package]["SPDXID"], "CONTAINS", files[-1]["SPDXID"]))
    # The same tree gives the same document: its name and time come from what is in it.
    seed = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"refit-{version}",
            "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, seed)}",
            "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": [f"Tool: refit-sbom-{version}"]},
            "packages": list(packages.values()), "files": files,
            "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in relations]}


def main():
    if len(sys.argv) != 2:
        raise SystemExit("usage: sbom.py ROOTFS")
    json.dump(bill(sys.argv[1]), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
