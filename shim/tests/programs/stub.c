/* SPDX-License-Identifier: Apache-2.0
 *
 * A toolkit's stub of the driver: the right name, and nothing behind it.
 */
int cuInit(unsigned flags) {
    (void)flags;
    return 34; /* CUDA_ERROR_STUB_LIBRARY */
}
