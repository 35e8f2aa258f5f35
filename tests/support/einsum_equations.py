"""Equations that other libraries document or test; extents follow from the letters."""

# torch.einsum's documentation and tests.
TORCH = """
    i->  i,i->  i,i->i  i,j->ij  ij->ji  ij->j  ij->i  ij,ij->ij  ij,j->i  ij,jk->ik
    ij,ab->ijab  ijk,ijk->ijk  ijk,jil->kl  ijk,ikl->ijl  bn,anm,bm->ba  ...ii->...i
    ...ij->...ji  ...ii->...  i...->...  ki,...k->i...  k...,jk  ...k,...jk->...j
    ...ik,...j->ij  abcd,dfg->abcfg
"""
# opt_einsum's tests.
OPT_EINSUM = """
    a,ab,abc->abc  a,b,ab->ab  ea,fb,gc,hd,abcd->efgh  ea,fb,abcd,gc,hd->efgh
    abcd,ea,fb,gc,hd->efgh  acdf,jbje,gihb,hfac,gfac,gifabc,hfac
    cd,bdhe,aidb,hgca,gc,hgibcd,hgac  abhe,hidj,jgba,hiab,gab  bde,cdh,agdb,hica,ibd,hgicd,hiac
    chd,bde,agbc,hiad,hgc,hgi,hiad  chd,bde,agbc,hiad,bdi,cgh,agdb  bdhe,acad,hiab,agac,hibd
    ab,ab,c->  ab,ab,c->c  ab,ab,cd,cd->  ab,ab,cd,cd->ac  ab,ab,cd,cd->cd  ab,ab,cd,cd,ef,ef->
    ab,cd,ef->abcdef  ab,cd,ef->acdf  ab,cd,de->abcde  ab,cd,de->be  ab,bcd,cd->abcd
    ab,bcd,cd->abd  eb,cb,fb->cef  dd,fb,be,cdb->cef  bca,cdb,dbf,afc->  dcc,fce,ea,dbf->ab
    fdf,cdd,ccd,afe->ae  abcd,ad  ed,fcd,ff,bcf->be  baa,dcf,af,cde->be  bd,db,eac->ace
    fff,fae,bef,def->abd  efc,dbc,acf,fd->abe  ab,ab  ab,ba  abc,abc  abc,bac  abc,cba  ab,bc
    ab,cb  ba,bc  ba,cb  abcd,cd  abcd,ab  abcd,cdef  abcd,cdef->feba  abcd,efdc  aab,bc->ac
    ab,bcc->ac  aab,bcc->ac  baa,bcc->ac  aab,ccb->ac  aab,fa,df,ecc->bde  ecb,fef,bad,ed->ac
    bcf,bbb,fbf,fc->  bb,ff,be->e  bcb,bb,fc,fff->  fbb,dfd,fc,fc->  afd,ba,cc,dc->bf
    adb,bc,fa,cfc->d  bbd,bda,fc,db->acf  dba,ead,cad->bce  aef,fbc,dca->bde
"""
# numpy.einsum's documentation and tests, and attention.
NUMPY = """
    ii  ii->i  ii->  ij,j  ij->  ji  ...,...  i,i  ij...,j...->i...  i,j  ki,jk->ij  a...->...
    ...a->...  a...->a...  ...a->...a  a...b,b...c->a...c  ij,jk,kl  i...j  ...i,...i  aabb->ab
    abab->ba  abba  ...ij,...j->...i  bhmd,bhnd->bhmn  bhij,bhjd->bihd  nct,ncp->ntp
    abc,abd->acd  zqrs,zqrs->z  bij,bjk->bik  ->  ,->  ,i  i,->i  i,ij,j  i,ij,j->  aa,a->a
    aba,b->a  iijj->ij  ijij->  ab...,bc->...ac  ...ab,...bc  abcdefg,g->f  AbC,bD->ADC  Ab,bA
    bA,Ab->bA
"""
EQUATIONS = [*TORCH.split(), *OPT_EINSUM.split(), *NUMPY.split()]


def shapes_of(equation: str) -> list[tuple[int, ...]]:
    """Shapes that fit: an ellipsis has one axis in odd operands, two in even ones."""
    shapes = []
    for at, word in enumerate(equation.partition("->")[0].split(",")):
        before, dots, after = word.partition("...")
        extra = ((2, 3), (3,))[at % 2] if dots else ()
        shapes.append((*map(_extent, before), *extra, *map(_extent, after)))
    return shapes


def _extent(letter: str) -> int:
    return 2 + ord(letter) % 4
