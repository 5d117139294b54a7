/* SPDX-License-Identifier: Apache-2.0
 *
 * namespaces - opens libraries in separate namespaces.
 */
#include "where.h"

static void *in_new(const char *file) {
    dlerror();
    void *handle = dlmopen(LM_ID_NEWLM, file, RTLD_NOW);
    const char *error = dlerror();
    printf("%s: %s\n", file, handle ? "opened" : error ? error : "null without a word");
    return handle;
}

int main(void) {
    alarm(60);
    void *driver = in_new("libcuda.so.1");
    if (driver) printf("driver: %s\n", where(dlsym(driver, "cuMemAlloc_v2")));
    void *plugin = in_new("linked.so");
    if (plugin) {
        int (*linked)(void) = (int (*)(void))dlsym(plugin, "linked");
        linked();
    }
    void *harmless = in_new("libm.so.6");
    if (harmless) {
        void *own = dlsym(dlopen("libm.so.6", RTLD_NOW), "cos");
        printf("cos: %s\n", dlsym(harmless, "cos") != own ? "another" : "the same");
    }
    in_new("no-such-library.so");
    in_new("/no/such/library.so");
    void *base = dlmopen(LM_ID_BASE, "libcuda.so.1", RTLD_NOW);
    printf("base: %s\n", where(base ? dlsym(base, "cuMemAlloc_v2") : NULL));
    return 0;
}
