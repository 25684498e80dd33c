"""Carries out a list of operations, one per line, in the current directory.

A line is an operation and its arguments, each in hex, parted by spaces. Whatever cannot be done is left out: the
same happens in the copy that this is compared with. Renames that the filesystem refuses are done by copying, as mv does.
"""

import errno
import os
import stat
import sys


def parents(path):
    os.makedirs(os.path.dirname(path) or b".", exist_ok=True)


def remove(path):
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in sorted(os.listdir(path)):
            remove(os.path.join(path, name))
        os.rmdir(path)
    else:
        os.unlink(path)


def is_within(target, source):
    """Links lead about: where an entry would really be made is what counts."""
    place = os.path.join(os.path.realpath(os.path.dirname(target) or b"."), os.path.basename(target))
    return (place + b"/").startswith(os.path.realpath(source) + b"/")


def copy_entry(source, target):
    if not is_within(target, source):
        copy(source, target)


def chmod(path, mode):
    """Directories stay open: a rename needs less than the copy that stands for it inside."""
    if not os.path.islink(path):
        os.chmod(path, int(mode, 8) | (0o700 if os.path.isdir(path) else 0))


def copy(source, target):
    info = os.lstat(source)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(info.st_mode):
        os.mkdir(target)
        for name in sorted(os.listdir(source)):
            copy(os.path.join(source, name), os.path.join(target, name))
        os.chmod(target, stat.S_IMODE(info.st_mode))
    else:
        with open(source, "rb") as read, open(target, "xb") as write:
            write.write(read.read())
        os.chmod(target, stat.S_IMODE(info.st_mode))


def move(source, target):
    if os.path.lexists(target) or is_within(target, source):
        return
    parents(target)
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy(source, target)
        remove(source)


def write(path, content):
    parents(path)
    with open(path, "wb") as file:
        file.write(content)


def append(path, content):
    with open(path, "ab") as file:
        file.write(content)


def symlink(path, target):
    parents(path)
    os.symlink(target, path)


def replace(path, content):
    """What editors do: a new file beside the old one, renamed over it."""
    parents(path)
    write(path + b".new", content)
    os.rename(path + b".new", path)


def again(path):
    """`rm -r d; mkdir d; touch d/new`"""
    remove(path)
    os.mkdir(path)
    write(os.path.join(path, b"new"), b"")


OPERATIONS = {
    "write": write,
    "append": append,
    "replace": replace,
    "remove": remove,
    "mkdir": lambda path: os.makedirs(path),
    "symlink": symlink,
    "chmod": chmod,
    "move": move,
    "copy": copy_entry,
    "link": lambda source, target: os.path.islink(source) or os.link(source, target),
    "truncate": lambda path, size: os.truncate(path, int(size)),
    "again": again,
    "touch": lambda path: os.utime(path),
}

os.umask(0o022)
start = os.open(".", os.O_RDONLY)
for line in open(sys.argv[1], "rb").read().split(b"\n"):
    word, *arguments = line.split(b" ")
    arguments = [bytes.fromhex(argument.decode()) for argument in arguments]
    if word == b"in":
        os.chdir(start)
        os.chdir(arguments[0])
    elif word:
        try:
            OPERATIONS[word.decode()](*arguments)
        except OSError:
            pass
