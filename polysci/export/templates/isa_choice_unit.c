#if @CONDITION@
@CODE@#else
typedef int @UNIT@_is_for_other_cpus;
#endif
