/* SPDX-License-Identifier: Apache-2.0
 *
 * ucx.so - wraps the driver's functions as communication libraries do: RTLD_NEXT for what it wraps.
 */
#include "where.h"

const char *wrapped(const char *name) { return where(dlsym(RTLD_NEXT, name)); }
