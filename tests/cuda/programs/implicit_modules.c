/* SPDX-License-Identifier: Apache-2.0
 *
 * implicit_modules - checks variables of modules: they are charged while the module is loaded, a
 * module that does not fit is refused, and afterwards neither the ledger nor the GPU keeps
 * anything.
 */
#include "ledger.h"

static const char *with_variable(size_t bytes) {
    static char text[256];
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 "
             "table[%zu];\n",
             bytes);
    return text;
}

int main(void) {
    watchdog(60);
    driver_open();
    ledger_open();
    CUmodule first, second;
    CHECK(cu.cuModuleLoadData(&first, with_variable(96 * MIB)));
    TAKEN(96 * MIB);
    CHECK(cu.cuModuleLoadData(&second, with_variable(32 * MIB)));
    TAKEN(128 * MIB);
    CHECK(cu.cuModuleUnload(first));
    TAKEN(32 * MIB);

    /* More than is left: refused as by a small GPU, and nothing of it stays. */
    CUmodule kept = first = second;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuModuleLoadData(&first, with_variable(ledger.shown)));
    TAKEN(32 * MIB);
    HOLDS(first == kept); /* a refused module leaves the handle alone */
    /* Exactly what is left. */
    CHECK(cu.cuModuleLoadData(&first, with_variable(ledger.shown - 32 * MIB)));
    HOLDS(free_shown() == 0);
    CUdeviceptr address;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(&address, 2 * MIB));
    CHECK(cu.cuModuleUnload(first));
    TAKEN(32 * MIB);

    /* Unloaded with its context; a later unload finds nothing. */
    CHECK(cu.cuDevicePrimaryCtxReset(0));
    CUcontext context;
    CHECK(cu.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cu.cuCtxSetCurrent(context));
    TAKEN(0);
    return 0;
}
