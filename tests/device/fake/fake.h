/* What the parts of the fake device share: see runtime.c. */
#pragma once
#include <stddef.h>

#define API __attribute__((visibility("default")))
/* A function by another name in C than in the library, so that no header's declaration is contradicted. */
#define NAMED(function, parameters) API int fake_##function parameters __asm__(#function); API int fake_##function parameters
#define SUCCEEDS(function) NAMED(function, ()) { return 0; }
#define MAKES(function) NAMED(function, (void **made)) { *made = fake_handle(); return 0; }
#define LAUNCHES(function) NAMED(function, ()) { return fake_launched(#function); }

API int fake_launched(const char *kernel); /* counts a kernel; returns 0, success */
API void *fake_handle(void);               /* a handle that no other object has */
