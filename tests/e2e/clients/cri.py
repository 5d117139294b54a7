"""Creates pods and containers in a container engine as the kubelet does: by CRI, over gRPC.

cri.py SOCKET pod NAME HANDLER
    creates a pod on the host's network with this runtime class's handler; prints its ID
cri.py SOCKET container POD_ID POD NAME IMAGE VAR...
    creates a container in it with these variables; prints its ID
cri.py SOCKET start ID
cri.py SOCKET exec ID WORD...
    prints the command's output; exits with its code
cri.py SOCKET remove POD_ID
    removes the pod with its containers

Messages are encoded by hand: a few fields of runtime.v1, by their numbers. An error is one line,
with exit code 1.
"""

import sys

import grpc

SERVICE = "/runtime.v1.RuntimeService/"
# NamespaceMode: the host's.
NODE = 2


def varint(value):
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def message(*fields):
    """Encodes fields (number, value): bytes and text as they are, numbers as varints."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def fields(data):
    """Decodes to a list of (number, value)."""
    at, found = 0, []

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        value = number()
        if tag & 7 == 2:
            value, at = data[at : at + value], at + value
        found.append((tag >> 3, value))
    return found


def field(data, number, default=b""):
    return next((value for other, value in fields(data) if other == number), default)


def pod_config(name):
    metadata = message((1, name), (2, f"uid-{name}"), (3, "default"))
    security = message((1, message((1, NODE))))
    return message((1, metadata), (8, message((2, security))))


def main():
    socket, what, *words = sys.argv[1:]
    channel = grpc.insecure_channel(f"unix://{socket}")

    def ask(method, request):
        call = channel.unary_unary(
            SERVICE + method, request_serializer=bytes, response_deserializer=bytes
        )
        return call(request, timeout=120)

    if what == "pod":
        name, handler = words
        print(field(ask("RunPodSandbox", message((1, pod_config(name)), (2, handler))), 1).decode())
    elif what == "container":
        pod_id, pod, name, image, *variables = words
        pairs = [variable.split("=", 1) for variable in variables]
        config = message(
            (1, message((1, name))),
            (2, message((1, image))),
            *[(6, message((1, key), (2, value))) for key, value in pairs],
        )
        request = message((1, pod_id), (2, config), (3, pod_config(pod)))
        print(field(ask("CreateContainer", request), 1).decode())
    elif what == "start":
        ask("StartContainer", message((1, words[0])))
    elif what == "exec":
        request = message((1, words[0]), *[(2, word) for word in words[1:]], (3, 60))
        answer = ask("ExecSync", request)
        sys.stdout.write(field(answer, 1).decode())
        sys.stderr.write(field(answer, 2).decode())
        return field(answer, 3, 0)
    elif what == "remove":
        ask("StopPodSandbox", message((1, words[0])))
        ask("RemovePodSandbox", message((1, words[0])))
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except grpc.RpcError as error:
        sys.exit(error.details())
