/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_of_a_domain_destroyed - checks a pool that is a locality domain's current one and is
 * destroyed with memory in use. The domain returns to its default pool and can allocate. Prints one
 * JSON object: the bytes in use.
 */
#include "records.h"

enum { PINNED = 1, DOMAIN = 6 };

int main(void) {
    struct location place = {DOMAIN, 1 << 8};
    struct pool_properties properties = {.kind = PINNED, .location = place};
    void *pool, *current, *usual;
    CUdeviceptr first, second;
    size_t before, during;
    watchdog(60);
    driver_open();
    FUNCTION(create, cuMemPoolCreate, (void **, const struct pool_properties *));
    FUNCTION(destroy, cuMemPoolDestroy, (void *));
    FUNCTION(allocate, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream));
    FUNCTION(release, cuMemFreeAsync, (CUdeviceptr, CUstream));
    FUNCTION(default_pool, cuMemGetDefaultMemPool, (void **, struct location *, int));
    FUNCTION(get_pool, cuMemGetMemPool, (void **, struct location *, int));
    FUNCTION(set_pool, cuMemSetMemPool, (struct location *, int, void *));
    CHECK(default_pool(&usual, &place, PINNED));
    CHECK(create(&pool, &properties));
    CHECK(set_pool(&place, PINNED, pool));
    CHECK(cu.cuMemGetInfo(&before, NULL));
    CHECK(allocate(&first, 64 * MIB, pool, NULL));
    CHECK(cu.cuMemGetInfo(&during, NULL));
    CHECK(destroy(pool));
    CHECK(get_pool(&current, &place, PINNED));
    HOLDS(current == usual);
    CHECK(allocate(&second, 2 * MIB, current, NULL));
    CHECK(release(second, NULL));
    CHECK(release(first, NULL));
    CHECK(cu.cuCtxSynchronize());
    printf("{\"in_use\": %zu}\n", before - during);
    return 0;
}
