/* SPDX-License-Identifier: Apache-2.0
 *
 * deepbind - opens a plugin that is bound to its dependencies before the program.
 */
#include "where.h"

int main(void) {
    alarm(60);
    void *plugin = open_or_end("linked.so", RTLD_NOW | RTLD_DEEPBIND);
    int (*linked)(void) = (int (*)(void))dlsym(plugin, "linked");
    return linked();
}
