/* SPDX-License-Identifier: Apache-2.0
 *
 * descriptors.h - sends an open file to another process over a socket.
 */
#ifndef CGPU_TEST_DESCRIPTORS_H
#define CGPU_TEST_DESCRIPTORS_H

#include "driver.h"

#include <sys/socket.h>

static inline void send_descriptor(int line, int descriptor) {
    char byte = 'D', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    HOLDS(sendmsg(line, &message, 0) == 1);
}

static inline int receive_descriptor(int line) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    int descriptor;
    HOLDS(recvmsg(line, &message, 0) == 1);
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

#endif
