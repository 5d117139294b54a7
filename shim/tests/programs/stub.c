/* SPDX-License-Identifier: Apache-2.0
 *
 * A toolkit's stub of the driver: the right name without an implementation.
 */
int cuInit(unsigned flags) {
    (void)flags;
    return 34; /* CUDA_ERROR_STUB_LIBRARY */
}
