/* SPDX-License-Identifier: Apache-2.0
 *
 * deposit give BYTES SOCKET - exports so much memory, and sends its descriptor to SOCKET.
 * deposit keep SOCKET - without CUDA: makes SOCKET, and keeps the descriptor that it gets.
 *
 * BYTES takes K, M, G. Each prints one JSON object when it is ready (keep: when it listens, and
 * when it has a descriptor), and stays until standard input ends.
 */
#include "ledger.h"
#include "descriptors.h"

#include <sys/un.h>

static int exported(size_t bytes) {
    static const struct allocation shareable = {
        .kind = PINNED, .handle_types = DESCRIPTOR, .location = {DEVICE, 0}};
    CUresult (*export_handle)(int *descriptor, uint64_t handle, int kind, uint64_t flags);
    uint64_t handle;
    int descriptor = -1;
    driver_open();
    ledger_open();
    *(void **)&export_handle = driver_symbol("cuMemExportToShareableHandle");
    CHECK(vm.create(&handle, bytes, &shareable, 0));
    CHECK(export_handle(&descriptor, handle, DESCRIPTOR, 0));
    return descriptor;
}

static void report(const char *what) {
    printf("{\"%s\": true}\n", what);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int gives = argc == 4 && strcmp(argv[1], "give") == 0;
    if (!gives && !(argc == 3 && strcmp(argv[1], "keep") == 0)) {
        fprintf(stderr, "usage: deposit give BYTES SOCKET | keep SOCKET\n");
        return 2;
    }
    watchdog(300);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    HOLDS(strlen(argv[argc - 1]) < sizeof address.sun_path);
    strcpy(address.sun_path, argv[argc - 1]);
    int line = socket(AF_UNIX, SOCK_STREAM, 0);
    HOLDS(line >= 0);
    if (gives) {
        HOLDS(connect(line, (void *)&address, sizeof address) == 0);
        send_descriptor(line, exported(parse_bytes(argv[2])));
        report("given");
    } else {
        HOLDS(bind(line, (void *)&address, sizeof address) == 0 && listen(line, 1) == 0);
        report("listens");
        receive_descriptor(accept(line, NULL, NULL));
        report("kept");
    }
    char rest[64];
    while (read(STDIN_FILENO, rest, sizeof rest) > 0) {}
    return 0;
}
