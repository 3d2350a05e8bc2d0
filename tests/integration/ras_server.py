#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A stand-in for NCCL's RAS: ras_server.py [--unshare] [--user UID] ADDRESS PORT FILE.

Speaks the client protocol of NCCL 2.24 and later (docs/userguide/source/troubleshooting/ras.rst and
src/ras/client_support.cc in NVIDIA/nccl). FILE says, at the time of the question, what it answers:
{"mode": ..., "version": ..., "comms": [{"hash", "secondary", "size", "ranks": [...], "missing":
[...]}]}, a rank being {"rank", "host", "pid", "device"}. Modes:

json     as NCCL 2.28.9 writes it, without a comma after "nvml_dev" of missing ranks
text     as before 2.28.7: it does not know SET FORMAT
silent   takes connections and says nothing
garbage  speaks another protocol
cut      json that breaks off in the middle
endless  json that does not end
deep     json of brackets

With --unshare in a network namespace of its own, in which it makes the loopback device work. Prints
"ready PID", then a line for each connection.
"""

import argparse
import ctypes
import fcntl
import json
import os
import socket
import struct
import threading

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def unshare():
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags, = struct.unpack_from("H", fcntl.ioctl(
            control, SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0)), 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | IFF_UP))


def json_rank(rank, missing):
    lines = ['"rank": %d,' % rank["rank"], '"host": "%s",' % rank["host"],
             '"pid": %d,' % rank["pid"], '"cuda_dev": %d,' % rank["device"],
             '"nvml_dev": %d%s' % (rank["device"], "" if missing else ",")]
    if missing:
        lines += ['"status": {', '"unresponsive": true,', '"considered_dead": false', "}"]
    else:
        lines += ['"status": {', '"init_state": 0,', '"async_error": 0,',
                  '"finalize_called": false,', '"destroy_flag": false,', '"abort_flag": false',
                  "},", '"collective_counts": {', '"Broadcast": 0,', '"AllReduce": 12', "}"]
    return "{\n%s\n}" % "\n".join(lines)


def json_comm(comm):
    ranks, missing = comm.get("ranks", []), comm.get("missing", [])
    return '{\n"hash": "0x%x",\n"secondary_hash": "0x%x:0x%x",\n"size": %d,\n' \
        '"ranks_count": %d,\n"missing_ranks_count": %d,\n"ranks": [\n%s\n],\n' \
        '"missing_ranks": [\n%s\n]\n}' % (
            comm["hash"], *comm.get("secondary", (1, 2)), comm["size"], len(ranks), len(missing),
            ",\n".join(json_rank(rank, False) for rank in ranks),
            ",\n".join(json_rank(rank, True) for rank in missing))


def in_json(said):
    comms = said["comms"]
    return '{\n"nccl_version": "%s",\n"cuda_runtime_version": 13000,\n' \
        '"cuda_driver_version": 13000,\n"timestamp": "2026-11-20 13:06:53",\n' \
        '"communicators_count": %d,\n"communicators": [\n%s\n],\n' \
        '"ras": {\n"collection_time_sec": 0.000,\n"timeouts_count": 0\n}\n}\n' % (
            said.get("version", "2.28.9"), len(comms), ",\n".join(map(json_comm, comms)))


def answer(connection, said):
    mode = said["mode"]
    text = in_json(said)
    if mode == "cut":
        text = text[:len(text) // 2]
    elif mode == "deep":
        text = "[" * 100000
    elif mode == "endless":
        text = text[:text.index('"communicators": [') + 18]
        while True:  # until the other end has had enough
            text += json_comm({"hash": 7, "size": 1}) + ",\n"
            connection.sendall(text.encode())
            text = text[-1000:] * 64
    connection.sendall(text.encode())


def serve(connection, path):
    with open(path, encoding="ascii") as file:
        said = json.load(file)
    mode = said["mode"]
    if mode == "silent":
        connection.recv(1)
        threading.Event().wait()
    if mode == "garbage":
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(range(256)) * 1000)
    for line in connection.makefile("r", encoding="ascii"):
        words = line.strip().lower()
        if words.startswith("client protocol "):
            connection.sendall(b"SERVER PROTOCOL 2\n")
        elif words == "set format json" and mode != "text":
            connection.sendall(b"OK\n")
        elif words == "status":
            answer(connection, said)
            return
        else:
            connection.sendall(b"ERROR: Unknown command %s\n" % line.strip().encode())


def talk(connection, path):
    with connection:
        try:
            serve(connection, path)
        except OSError:
            pass  # the other end has gone


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unshare", action="store_true")
    parser.add_argument("--user", type=int)
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("file")
    options = parser.parse_args()
    if options.unshare:
        unshare()
    if options.user is not None:
        os.setresuid(options.user, options.user, options.user)
    with socket.socket(socket.AF_INET6 if ":" in options.address else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((options.address, options.port))
        listener.listen(128)
        print("ready %d" % os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            print("connection", flush=True)
            threading.Thread(target=talk, args=(connection, options.file), daemon=True).start()


if __name__ == "__main__":
    main()
