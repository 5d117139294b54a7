/* SPDX-License-Identifier: Apache-2.0
 *
 * objects.h - the driver's structures for objects that hold memory beside its handle: multicast
 * objects, logical endpoints, tiles of sparse arrays.
 */
#ifndef CGPU_TEST_OBJECTS_H
#define CGPU_TEST_OBJECTS_H

#include "records.h"

struct team {
    unsigned devices;
    size_t size;
    uint64_t handle_types, flags;
};

struct endpoint {
    int kind, device_or_devices;
    unsigned long long size;
    unsigned handle_types, flags;
};

struct array {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

struct map_info {
    int resource_kind;
    void *resource;
    int part_kind;
    union {
        struct {
            unsigned level, layer, offset[3], extent[3];
        } level;
        struct {
            unsigned layer;
            unsigned long long offset, size;
        } tail;
        unsigned long long words[4];
    } part;
    int operation, handle_kind;
    uint64_t handle, offset;
    unsigned devices, flags, reserved[2];
};

#endif
