/* SPDX-License-Identifier: Apache-2.0
 *
 * other.so - a library that is not the driver and has functions of its names.
 */
int cuInit(unsigned flags) { return 1000 + (int)flags; }
int cuMemAlloc_v2(void) { return 1001; }
