"""A registry of images on a port of its own, with one image `small:1` made of a directory. Prints its port and the digest."""

import gzip
import hashlib
import http.server
import io
import json
import sys
import tarfile

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


plain = io.BytesIO()
with tarfile.open(fileobj=plain, mode="w") as archive:
    archive.add(sys.argv[1], ".")
layer = gzip.compress(plain.getvalue(), mtime=0)
config = json.dumps({
    "architecture": "amd64", "os": "linux", "config": {},
    "rootfs": {"type": "layers", "diff_ids": [digest(plain.getvalue())]},
}).encode()
manifest = json.dumps({
    "schemaVersion": 2, "mediaType": MANIFEST,
    "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": digest(config)},
    "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(layer), "digest": digest(layer)}],
}).encode()
held = {"/v2/": b"{}"}
for name in ("1", digest(manifest)):
    held["/v2/small/manifests/" + name] = manifest
for blob in (config, layer):
    held["/v2/small/blobs/" + digest(blob)] = blob


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        content = held.get(self.path.split("?")[0])
        self.send_response(404 if content is None else 200)
        content = content or b""
        self.send_header("Content-Type", MANIFEST if content == manifest else "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", digest(content))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *words):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], digest(manifest), flush=True)
server.serve_forever()
