// The switch between two fibers where it is a few instructions (context.h).
#include "cuda/simt/context.h"

#if defined(__x86_64__)
asm(R"(
.text
.globl assay_simt_switch
.hidden assay_simt_switch
.type assay_simt_switch, @function
assay_simt_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size assay_simt_switch, .-assay_simt_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl assay_simt_switch
.hidden assay_simt_switch
.type assay_simt_switch, %function
assay_simt_switch:
  stp d8, d9, [sp, #-160]!
  stp d10, d11, [sp, #16]
  stp d12, d13, [sp, #32]
  stp d14, d15, [sp, #48]
  stp x19, x20, [sp, #64]
  stp x21, x22, [sp, #80]
  stp x23, x24, [sp, #96]
  stp x25, x26, [sp, #112]
  stp x27, x28, [sp, #128]
  stp x29, x30, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp d10, d11, [sp, #16]
  ldp d12, d13, [sp, #32]
  ldp d14, d15, [sp, #48]
  ldp x19, x20, [sp, #64]
  ldp x21, x22, [sp, #80]
  ldp x23, x24, [sp, #96]
  ldp x25, x26, [sp, #112]
  ldp x27, x28, [sp, #128]
  ldp x29, x30, [sp, #144]
  ldp d8, d9, [sp], #160
  ret
.size assay_simt_switch, .-assay_simt_switch
)");
#endif
