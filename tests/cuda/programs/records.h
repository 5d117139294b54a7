/* SPDX-License-Identifier: Apache-2.0
 *
 * records.h - the driver's structures for memory with a location: physical memory, pools, access.
 */
#ifndef CGPU_TEST_RECORDS_H
#define CGPU_TEST_RECORDS_H

#include "driver.h"

#define MIB ((size_t)1 << 20)

/* Declares a function of the driver and looks it up. */
#define FUNCTION(name, symbol, arguments) \
    CUresult(*name) arguments;            \
    *(void **)&name = driver_symbol(#symbol)

struct location {
    int kind, id;
};
struct allocation {
    int kind, handle_types;
    struct location location;
    void *windows;
    unsigned char flags[8];
};
struct access {
    struct location location;
    int flags;
};
struct pool_properties {
    int kind, handle_types;
    struct location location;
    void *windows;
    size_t max_size;
    unsigned char reserved[56];
};

#endif
