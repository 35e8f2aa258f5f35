/* AMX: eight tile registers of 16 rows x 64 bytes, beside everything that AVX-512 has.  Linux lets
 * a process use them once it has asked: their 8 KiB of state need room in every signal frame. */

/* arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA): 0 where granted, also where it was already. */
PS_SCALAR long ps_ask_for_tiles(void)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(158L), "D"(0x1023L), "S"(18L)
                     : "rcx", "r11", "memory");
    return result;
}

PS_SCALAR int ps_ask_amx(void)
{
    return ps_has_avx512fp16() && ps_cpu_has(PS_CPU_AMX) && ps_ask_for_tiles() == 0;
}

PS_SCALAR int ps_has_amx(void)
{
    static int answer;
    return ps_kept(&answer, ps_ask_amx);
}
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_amx
