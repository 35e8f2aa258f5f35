
find_package(OpenMP COMPONENTS C)
if(OpenMP_C_FOUND)
  target_link_libraries(@NAME@ PRIVATE OpenMP::OpenMP_C)
endif()
