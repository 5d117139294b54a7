/* SPDX-License-Identifier: Apache-2.0
 *
 * export_table - gets a private table of the driver three times, the first time before cuInit.
 */
#include "foreign.h"

int main(void) {
    watchdog(60);
    driver_load();
    foreign_open();
    CHECK(cu.cuInit(0));
    foreign_open();
    foreign_open();
    return 0;
}
