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
    const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25; /* amx-bf16, amx-tile, amx-int8 */
    unsigned a, b, c, d;
    return ps_has_avx512fp16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & needed) == needed && ps_ask_for_tiles() == 0;
}

PS_SCALAR int ps_has_amx(void)
{
    static int answer;
    return ps_kept(&answer, ps_ask_amx);
}
#undef PS_CPU_OK
#define PS_CPU_OK ps_has_amx
