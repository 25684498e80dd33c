"""A server whose disk fills up under its requests. Arguments: state directory, program, project.

In a mount namespace of its own: the state directory is a small tmpfs. In each round six requests with keys are sent at
once, the disk is filled while they are under way, and freed. Each is then sent again with its key; prints what came of it.
"""
import http.client, json, os, signal, socket, subprocess, sys, threading, time

state, skep, project = sys.argv[1:]
os.makedirs(state, exist_ok=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=700", "none", state], check=True)
path = os.path.join(state, "skep.sock")
log = open(state + ".log", "w")
server = subprocess.Popen([skep, "--home", state, "serve"], stderr=log, env=os.environ | {"SKEP_HOME": state})


class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(path)


def ask(method, target, body=None, key=None):
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    connection = Connection("localhost")
    connection.request(method, target, json.dumps(body) if body is not None else None, headers)
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text else None


def at_once(requests):
    answers = [None] * len(requests)

    def one(number):
        answers[number] = ask("POST", *requests[number])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    return threads, answers


def fill():
    with open(os.path.join(state, "filler"), "wb", buffering=0) as filler:
        try:
            while filler.write(b"\0" * 65536):
                pass
        except OSError:
            pass
        try:
            while filler.write(b"\0" * 512):
                pass
        except OSError:
            pass


deadline = time.monotonic() + 30
while not os.path.exists(path):
    assert time.monotonic() < deadline, "the server does not start"
    time.sleep(0.05)
status, base = ask("POST", "/v1/sandboxes", {"project": project, "name": "base"})
assert status == 201, base
asked, failed = [], 0
# On a busy machine all may be over before the disk is full: the last rounds begin on a full one.
for number, pause in enumerate([0.0, 0.03, 0.06, 0.1, 0.15, 0.02, None, None]):
    if failed >= 5 and number > 1:
        break
    requests = []
    for one in range(6):
        key = f"k{number}-{one}"
        if one % 3 == 2:
            requests.append(("/v1/sandboxes/base/execs", {"command": ["true"]}, key))
        else:
            requests.append(("/v1/sandboxes", {"project": project, "name": f"n{number}-{one}"}, key))
    if pause is None:
        fill()
    threads, answers = at_once(requests)
    if pause is not None:
        time.sleep(pause)
        fill()
    for thread in threads:
        thread.join()
    os.unlink(os.path.join(state, "filler"))
    for status, answer in answers:
        assert status in (201, 503, 507), (status, answer)
    failed += sum(status != 201 for status, _ in answers)
    asked += requests
print("met", failed, "of", len(asked))
threads, answers = at_once(asked)
for thread in threads:
    thread.join()
for request, (status, answer) in zip(asked, answers):
    # Of an exec it may not be known whether it began: that is said, and it is not for ever under way.
    good = status == 201 or status == 409 and request[0].endswith("execs")
    assert good, (request, status, answer)
deadline = time.monotonic() + 30
while ask("GET", "/v1/sandboxes?state=creating")[1]["items"]:
    assert time.monotonic() < deadline, "a row is half made"
    time.sleep(0.1)
items = ask("GET", "/v1/sandboxes?limit=1000")[1]["items"]
wanted = {"base"} | {body["name"] for _, body, _ in asked if "name" in body}
assert {item["name"] for item in items} == wanted, items
assert sorted(os.listdir(os.path.join(state, "sandboxes"))) == sorted(item["id"] for item in items)
for item in items:
    assert ask("DELETE", f"/v1/sandboxes/{item['id']}?discard=true")[0] == 204
print("left", len(os.listdir(os.path.join(state, "sandboxes"))))
server.send_signal(signal.SIGTERM)
print("ended", server.wait(30))
