/* SPDX-License-Identifier: Apache-2.0
 *
 * implicit_libraries - checks variables of libraries, which take GPU memory when the first look-up
 * loads the library into a context. They are charged then, and refused if they do not fit, so that
 * a runtime that loads all its code as libraries stays within its limit.
 */
#include "ledger.h"

static struct {
    CUresult (*load)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
    CUresult (*unload)(void *);
    CUresult (*module)(void **, void *);
    CUresult (*global)(CUdeviceptr *, size_t *, void *, const char *);
    CUresult (*kernel)(void **, void *, const char *);
    CUresult (*function)(void **, void *);
} lib;

static void *with_variable(size_t bytes) {
    static char text[256];
    void *library;
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 "
             "table[%zu];\n",
             bytes);
    CHECK(lib.load(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    return library;
}

/* Loads by another call each time. */
static CUresult load_into_context(void *library, unsigned way) {
    void *found;
    CUdeviceptr address;
    size_t bytes;
    switch (way % 3) {
    case 0: return lib.module(&found, library);
    case 1: return lib.global(&address, &bytes, library, "table");
    default: CHECK(lib.kernel(&found, library, "any")); return lib.function(&found, found);
    }
}

enum { EACH = 96, MOST = 256 };

/* Requires that this many libraries are loaded, as shown and by the driver. Code of kernels
 * takes a block of the context, which stays. */
static size_t code;

static void brought(unsigned libraries) {
    size_t variables = libraries * EACH * MIB;
    if (code == 0) code = truth() - variables;
    HOLDS(code == 0 || code == 2 * MIB);
    TAKEN(variables + code);
}

int main(void) {
    watchdog(120);
    driver_open();
    ledger_open();
    *(void **)&lib.load = driver_symbol("cuLibraryLoadData");
    *(void **)&lib.unload = driver_symbol("cuLibraryUnload");
    *(void **)&lib.module = driver_symbol("cuLibraryGetModule");
    *(void **)&lib.global = driver_symbol("cuLibraryGetGlobal");
    *(void **)&lib.kernel = driver_symbol("cuLibraryGetKernel");
    *(void **)&lib.function = driver_symbol("cuKernelGetFunction");
    const char *loading = getenv("CUDA_MODULE_LOADING");
    int eager = loading && strcmp(loading, "EAGER") == 0;

    void *library[MOST];
    unsigned fit = 0;
    for (; !eager && fit < MOST; fit++) {
        library[fit] = with_variable(EACH * MIB);
        brought(fit);
        CUresult result = load_into_context(library[fit], fit);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) break;
        CHECK(result);
        brought(fit + 1);
        /* It is loaded already, and takes nothing more. */
        CHECK(load_into_context(library[fit], 0));
        CHECK(load_into_context(library[fit], 1));
    }
    if (eager) {
        /* Loaded at once. */
        for (; fit < MOST; fit++) {
            static char text[128];
            snprintf(text, sizeof text, ".global .align 8 .b8 table[%zu];\n", EACH * MIB);
            CUresult result = lib.load(&library[fit], text, NULL, NULL, 0, NULL, NULL, 0);
            if (result == CUDA_ERROR_OUT_OF_MEMORY) break;
            CHECK(result);
            brought(fit + 1);
            CHECK(load_into_context(library[fit], fit));
            brought(fit + 1);
        }
    }
    /* As many as fit and no more. A refused library leaves nothing, and the next one is refused,
     * too. */
    HOLDS(fit == (ledger.shown - code) / (EACH * MIB));
    brought(fit);
    if (!eager) {
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, load_into_context(library[fit], fit + 1));
        CHECK(lib.unload(library[0]));
        brought(fit - 1);
        CHECK(load_into_context(library[fit], fit + 1));
        brought(fit);
        CHECK(lib.unload(library[fit]));
    } else {
        CHECK(lib.unload(library[0]));
    }
    for (unsigned other = 1; other < fit; other++) CHECK(lib.unload(library[other]));
    brought(0);
    return 0;
}
